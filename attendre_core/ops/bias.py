"""Biases that depend on the distance of a pair alone, computed when they are needed.

The biases of all pairs are as large as the logits; a fused kernel computes each from positions.
"""

from __future__ import annotations

from typing import NamedTuple

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.ops.lookup import take_rows

__all__ = ["DistanceBias"]


class DistanceBias(NamedTuple):
    """A table of biases by offset, or a slope.

    The offset is the key's place minus the query's. G is the number of K/V heads and R the number
    of query heads per K/V head.

    Attributes
    ----------
    table
        (2n + 1, G, R): the bias of the offsets -n to n; those beyond have the bias of the nearest
        end. None: a slope is given instead.
    slope
        (G, R): multiplies the distance, which is the size of the offset.

    Examples
    --------
    >>> import numpy as np
    >>> bias = DistanceBias(slope=np.asarray([[-0.5, -0.25]]))
    >>> at_query, at_key = np.asarray([[[[7]]]]), np.asarray([[[3, 9]]])
    >>> bias.of(at_query, at_key).tolist()
    [[[[[-2.0, -1.0]], [[-1.0, -0.5]]]]]
    """

    table: Array | None = None
    slope: Array | None = None

    def of(self, query_place: Array, key_place: Array) -> Array:
        """Return the bias of every pair, (batch, G, R, queries, slots).

        Parameters
        ----------
        query_place
            (batch, 1 or G, 1, queries).
        key_place
            (batch, 1 or G, slots).
        """
        xp = namespace_of(query_place)
        offset = key_place[:, :, None, None, :] - query_place[..., None]
        if self.table is None:
            slope: Array = self.slope
            distance = xp.astype(xp.abs(offset), slope.dtype)
            return slope[None, :, :, None, None] * distance
        count, heads, group = self.table.shape
        far = xp.full_like(offset, count // 2)
        row = xp.minimum(xp.maximum(offset, -far), far) + count // 2
        if row.shape[1] == 1:
            return xp.permute_dims(take_rows(self.table, row[:, 0, 0, ...]), (0, 3, 4, 1, 2))
        # Offsets differ between K/V heads: each head looks up its own column.
        head = xp.reshape(numbers(heads * group, row), (heads, group, 1, 1))
        return take_rows(xp.reshape(self.table, (-1,)), row * (heads * group) + head)
