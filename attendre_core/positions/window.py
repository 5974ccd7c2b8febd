"""A sliding window around each query, on top of any scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.checks import LAST_POSITION
from attendre_core.errors import ConfigError
from attendre_core.positions.base import Encoded, Encoding, Places
from attendre_core.positions.none import NoPosition

__all__ = ["Window"]


@dataclass(frozen=True)
class Window(Encoding):
    """Allow attention only between positions less than ``size`` apart.

    In a causal layer this is the sliding window of Mistral and Gemma; otherwise it is the local
    attention of ModernBERT, ``size - 1`` positions to either side. It does not evict: entries
    outside the window stay stored, but are not seen.

    Parameters
    ----------
    size
        Positions on each side, including the query's own.
    inner
        The scheme inside the window.

    Examples
    --------
    >>> Window(size=4096).inner
    NoPosition()
    """

    size: int
    inner: Encoding = NoPosition()

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                f"Window: size is {self.size}, expected at least 1, the query's own position."
            )

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Apply the inner scheme and mask far pairs."""
        xp = backend_of(query).xp
        distance = places.query[..., None] - places.key[:, :, None, None, :]
        near = xp.abs(distance) < min(self.size, LAST_POSITION)  # which no distance exceeds
        encoded = self.inner.encode(query, key, places, params)
        return encoded._replace(near=near if encoded.near is None else near & encoded.near)
