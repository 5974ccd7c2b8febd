"""A sliding window around each query, on top of any scheme."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.positions.base import Encoded, Encoding, Places
from attendre_core.positions.none import NoPosition

__all__ = ["Window"]


@dataclass(frozen=True)
class Window(Encoding):
    """Let only pairs attend whose original positions are less than ``size`` apart.

    With a causal layer this is the sliding window of Mistral and Gemma; without, the local
    attention of ModernBERT, which reaches ``size - 1`` positions to either side. It never costs
    an entry its place: what lies outside of the window is stored, but not seen.

    Parameters
    ----------
    size
        Positions on each side, the query's own included.
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
        """Apply the inner scheme and leave out far pairs."""
        xp = backend_of(query).xp
        distance = places.query[..., None] - places.key[:, :, None, None, :]
        near = xp.abs(distance) < self.size
        encoded = self.inner.encode(query, key, places, params)
        return encoded._replace(near=near if encoded.near is None else near & encoded.near)
