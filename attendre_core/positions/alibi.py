"""ALiBi: a penalty on the logits that grows linearly with the distance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.ops.bias import DistanceBias
from attendre_core.positions.base import Encoded, Encoding, Places, Term

__all__ = ["ALiBi", "alibi_slopes"]


def alibi_slopes(heads: int) -> list[float]:
    """Return the slope of each head.

    For a power of two, a geometric series. For other numbers of heads, the series of the next
    lower power of two, then every other slope of the next higher one.

    Examples
    --------
    >>> alibi_slopes(2), len(alibi_slopes(12))
    ([0.0625, 0.00390625], 12)
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    higher = [2.0 ** (-4.0 * (i + 1) / power) for i in range(2 * power)]
    return slopes + higher[0::2][: heads - power]


@dataclass(frozen=True)
class ALiBi(Encoding):
    """Subtract slope times distance from the logits, equally in both directions.

    Examples
    --------
    >>> ALiBi()
    ALiBi()
    """

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Give each head its slope."""
        backend = backend_of(query)
        xp = backend.xp
        heads, group = query.shape[1], query.shape[2]
        each = alibi_slopes(heads * group)
        slopes = xp.asarray(each, dtype=query.dtype, device=backend.device_of(query))
        slopes = xp.reshape(slopes, (heads, group))
        return Encoded((Term(query, key),), places, bias=DistanceBias(slope=-slopes))
