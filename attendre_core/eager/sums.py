"""Sums of logits without the matrix of logits.

The sum of w q.k over the queries that see a key is (sum of w q).k: one vector per head for all keys
that every query sees. In a causal chunk, some queries do not see all keys of the chunk itself;
where positions may be read, these few keys get sums of their own.
"""

from __future__ import annotations

from attendre_core.backend import Array, backend_of, namespace_of
from attendre_core.eager.parts import Group, groups_of, whole
from attendre_core.ops.pairs import Pairs
from attendre_core.ops.pairs import sum_logits as _op
from attendre_core.ops.slots import write_slots

__all__ = ["sum_logits"]

_LAST = 2**31 - 1


def sum_logits(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum the queries before multiplying by keys; decline a bias, a mask, or many late keys."""
    if not pairs.is_plain or pairs.near is not None:
        return NotImplemented
    if len(pairs.terms) == 1:
        return _one_term(pairs, weight)
    rows = groups_of(pairs)
    if rows is None:
        return NotImplemented

    def of_group(row: int, group: Group) -> Array:
        own = None if weight is None else weight[row : row + 1, :]
        first, *others = (_op(pairs, own) for pairs in group.pairs)
        return sum(others, start=first)

    results = [
        whole(groups, [of_group(row, group) for group in groups]) for row, groups in enumerate(rows)
    ]
    return results[0] if len(results) == 1 else namespace_of(results[0]).concat(results, axis=0)


def _one_term(pairs: Pairs, weight: Array | None) -> Array:
    xp = namespace_of(pairs.query_valid)
    query, key = pairs.terms[0].query, pairs.terms[0].key
    factor = xp.astype(pairs.query_valid, query.dtype)
    factor = factor if weight is None else factor * weight
    late = None
    if pairs.causal:
        found = backend_of(pairs.key_position)
        if not (found.is_concrete(pairs.key_position) and found.is_concrete(pairs.query_valid)):
            return NotImplemented
        at = pairs.query_position[:, :, 0, :]
        at = xp.where(pairs.query_valid[:, None, :], at, xp.full_like(at, _LAST))
        late = pairs.key_valid & (pairs.key_position > xp.min(at, axis=-1, keepdims=True))
        (which,) = xp.nonzero(xp.any(late, axis=(0, 1)))
        if 2 * which.shape[0] > key.shape[2]:
            return NotImplemented
    rows = xp.broadcast_to(factor[:, None, None, None, :], (*query.shape[:3], 1, factor.shape[1]))
    total = xp.matmul(rows, query)[:, :, :, 0, :]
    sums = xp.matmul(total, xp.matrix_transpose(key))
    if late is None or which.shape[0] == 0:
        return sums
    # The late keys: each is seen only by the queries at or after its position.
    place = xp.take(pairs.key_position, which, axis=2)
    behind = xp.astype(at[:, :, None, :] >= place[..., None], query.dtype)
    behind = (behind * factor[:, None, None, :])[:, :, None, :, :]
    summed = xp.matmul(behind, query)
    few = xp.sum(summed * xp.take(key, which, axis=2)[:, :, None, :, :], axis=-1, dtype=key.dtype)
    index = xp.broadcast_to(which, few.shape)
    write = xp.broadcast_to(xp.take(late, which, axis=2)[:, :, None, :], few.shape)
    return write_slots([sums], index, [few], write, axis=3, donate=True)[0]
