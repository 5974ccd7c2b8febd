"""T5's bucketed relative bias."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.ops.bias import DistanceBias
from attendre_core.ops.tables import table
from attendre_core.positions.base import Encoded, Encoding, Places, Term

__all__ = ["T5Bias", "bucket_of"]

_FARTHEST = 2**16


def bucket_of(offset: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """Return the bucket of a key that is ``offset`` positions after its query.

    Half of the buckets (of each direction) hold one distance each, the others grow
    logarithmically up to ``max_distance``; all larger distances share the last one.

    Examples
    --------
    >>> [bucket_of(d, 32, 128, True) for d in (0, -1, 1, -20, 500)]
    [0, 1, 17, 10, 31]
    """
    start = 0
    if bidirectional:
        buckets //= 2
        start = buckets if offset > 0 else 0
        distance = abs(offset)
    else:
        distance = max(-offset, 0)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    # T5 evaluates this in float32; 1e-6 puts a distance on a boundary into the same bucket.
    ratio = math.log(distance / exact) / math.log(max_distance / exact)
    grown = exact + math.floor(ratio * (buckets - exact) + 1e-6)
    return start + min(grown, buckets - 1)


@dataclass(frozen=True)
class T5Bias(Encoding):
    """Add a learned bias per bucket of distances and per head.

    The table, (buckets, heads), is passed as ``encoding_params``.

    Parameters
    ----------
    buckets, max_distance
        32 and 128 in T5.
    bidirectional
        True in encoders, False in decoders.

    Examples
    --------
    >>> T5Bias().buckets
    32
    """

    buckets: int = 32
    max_distance: int = 128
    bidirectional: bool = True

    def __post_init__(self) -> None:
        per_side = self.buckets // 2 if self.bidirectional else self.buckets
        if per_side < 2 or self.max_distance <= per_side // 2:
            raise ConfigError(
                f"T5Bias: {self.buckets} buckets up to distance {self.max_distance} leave no room "
                "for growing ones. T5 uses 32 buckets and a distance of 128."
            )
        if self.max_distance > _FARTHEST:
            raise ConfigError(
                f"T5Bias: a distance of {self.max_distance} would need a table of all distances, "
                f"expected at most {_FARTHEST}. T5 uses 128."
            )
        # Computed once, outside of compiled code. Not a field, so equality ignores it.
        by_offset = tuple(
            bucket_of(offset, self.buckets, self.max_distance, self.bidirectional)
            for offset in range(-self.max_distance, self.max_distance + 1)
        )
        object.__setattr__(self, "_by_offset", by_offset)

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Look up the bias of every offset."""
        xp = backend_of(query).xp
        heads, group = query.shape[1], query.shape[2]
        expected = (self.buckets, heads * group)
        if params is None or tuple(params.shape) != expected:
            given = "nothing" if params is None else f"shape {tuple(params.shape)}"
            raise ShapeError(
                f"T5Bias: the table is {given}, expected (buckets, heads) = {expected}. Pass it "
                "as encoding_params."
            )
        by_offset = xp.take(params, table(query, _buckets, self, dtype=xp.int32), axis=0)
        by_offset = xp.reshape(by_offset, (-1, heads, group))
        return Encoded((Term(query, key),), places, bias=DistanceBias(by_offset))


def _buckets(scheme: T5Bias) -> tuple[int, ...]:
    """Return the bucket of each offset from -max_distance to max_distance."""
    by_offset: tuple[int, ...] = scheme._by_offset  # type: ignore[attr-defined]
    return by_offset
