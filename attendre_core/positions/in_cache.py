"""In-cache positions (StreamingLLM): number the stored entries, not the input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array
from attendre_core.ops.counting import count_true
from attendre_core.positions.base import Encoded, Encoding, Places
from attendre_core.positions.rope import RoPE

__all__ = ["InCache"]


@dataclass(frozen=True)
class InCache(Encoding):
    """Number the stored entries 0, 1, ... by their original positions, then apply a scheme.

    A query has the number of its own key, or the one that key would have if it is no longer
    stored: the number of stored entries at or before it, minus one.

    Parameters
    ----------
    inner
        The scheme that is applied to these numbers.

    Examples
    --------
    >>> InCache(RoPE()).inner
    RoPE(base=10000.0, scaling=None, rotary_dim=None, interleaved=False)
    """

    inner: Encoding = RoPE()

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Replace positions by ranks and apply the inner scheme."""
        at, real = places.key, places.key_valid
        rank = count_true((at[..., None, :] < at[..., :, None]) & real[..., None, :], axis=-1)
        before = at[:, :, None, None, :] <= places.query[..., None]
        place = count_true(before & real[:, :, None, None, :], axis=-1) - 1
        return self.inner.encode(query, key, places._replace(query=place, key=rank), params)
