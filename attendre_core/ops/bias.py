"""Biases that depend on the distance of a pair alone, computed when they are needed.

The biases of all pairs are as large as the logits; a fused kernel computes each from positions.
"""

from __future__ import annotations

from typing import NamedTuple

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.ops.lookup import take_rows
from attendre_core.ops.slots import gather_slots

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
            return slope[None, :, :, None, None] * xp.astype(xp.abs(offset), slope.dtype)
        count, heads, group = self.table.shape
        far = xp.full_like(offset, count // 2)
        row = xp.minimum(xp.maximum(offset, -far), far) + count // 2
        if row.shape[1] == 1:
            return xp.permute_dims(take_rows(self.table, row[:, 0, 0, ...]), (0, 3, 4, 1, 2))
        # Offsets differ between K/V heads: each looks up its own columns, wherever these are.
        batch, _, _, queries, slots = row.shape
        columns = xp.permute_dims(self.table, (1, 0, 2))
        columns = xp.broadcast_to(columns[None, ...], (batch, heads, count, group))
        index = xp.reshape(row, (batch, heads, queries * slots))
        index = xp.astype(index, xp.argsort(numbers(1, row)).dtype)  # the library's for indices
        found = xp.reshape(
            gather_slots(columns, index, axis=2), (batch, heads, queries, slots, group)
        )
        return xp.permute_dims(found, (0, 1, 4, 2, 3))
