"""In-cache positions (StreamingLLM): count what is stored, not what was read."""

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

    A query stands where its own key stands, or would stand if that key is gone: at the number
    of stored entries at or before it, less one.

    Parameters
    ----------
    inner
        The scheme that sees these numbers.

    Examples
    --------
    >>> InCache(RoPE()).inner
    RoPE(base=10000.0, scaling=None, rotary_dim=None, interleaved=False)
    """

    inner: Encoding = RoPE()

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Replace positions by ranks and let the inner scheme do the rest."""
        at, real = places.key, places.key_valid
        rank = count_true((at[..., None, :] < at[..., :, None]) & real[..., None, :], axis=-1)
        before = at[:, :, None, None, :] <= places.query[..., None]
        place = count_true(before & real[:, :, None, None, :], axis=-1) - 1
        return self.inner.encode(query, key, places._replace(query=place, key=rank), params)
