"""Group slots by the terms that their logits need, where positions may be read.

A memory holds entries near the queries and far from them, and `LMInfinite` has a term for each. In
groups, each slot is multiplied once, and only near keys are rotated by their positions::

    slots     | far | near | edge | far |        edge: near to some queries, far from others
    groups    far: slots 0, 3   near: slot 1   edge: slot 2, once per term, with a mask

The shape of a product never depends on other rows of the batch: a different shape would be rounded
differently, and other rows could decide a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attendre_core.backend import Array, backend_of, namespace_of
from attendre_core.ops.dense import logits_of
from attendre_core.ops.pairs import Pairs, Term
from attendre_core.ops.slots import gather_slots

__all__ = ["Group", "groups_of", "logits", "whole"]


class Group(NamedTuple):
    """Some slots of one row.

    ``slots`` is an integer array, (n,), or None for all. ``pairs`` has one element per term that
    the slots need, each with a single unbounded term, and with a mask if there are several.
    """

    slots: Array | None
    pairs: tuple[Pairs, ...]


def groups_of(pairs: Pairs) -> list[list[Group]] | None:
    """Return the groups of each row; None if positions may not be read."""
    memo = pairs.memo if pairs.memo is not None else {}
    if "groups" not in memo:
        memo["groups"] = _groups_of(pairs)
    groups: list[list[Group]] | None = memo["groups"]
    return groups


def _groups_of(pairs: Pairs) -> list[list[Group]] | None:
    found = backend_of(pairs.key_place)
    arrays = (pairs.query_place, pairs.key_place, pairs.query_valid, pairs.key_valid)
    if pairs.key_place.shape[1] != 1 or pairs.near is not None or not pairs.is_plain:
        return None
    if not all(found.is_concrete(array) for array in arrays):
        return None
    query_at, key_at, real, held = (found.to_numpy(array) for array in arrays)
    return [
        _groups_of_row(pairs, row, query_at[row, 0, 0], key_at[row, 0], real[row], held[row, 0])
        for row in range(len(real))
    ]


def _groups_of_row(
    pairs: Pairs, row: int, query_at: Any, key_at: Any, real: Any, held: Any
) -> list[Group]:
    if not real.any() or not held.any():
        return [_group(pairs, row, None, (0,))]
    first, last = query_at[real].min(), query_at[real].max()
    # The terms that each slot needs: a later term overrides an earlier one.
    needed = np.zeros((len(pairs.terms), len(key_at)), dtype=bool)
    taken = ~held
    for number in reversed(range(len(pairs.terms))):
        term = pairs.terms[number]
        low = -np.inf if term.low is None else term.low
        high = np.inf if term.high is None else term.high
        some = (last - key_at >= low) & (first - key_at < high)
        needed[number] = some & ~taken
        taken = taken | ((first - key_at >= low) & (last - key_at < high))
    count = needed.sum(axis=0)
    several = count > 1
    pure = [(needed[number] & ~several, (number,)) for number in range(len(pairs.terms))]
    mixed = [(several, tuple(int(n) for n in np.flatnonzero(needed[:, several].any(axis=1))))]
    chosen = [(which, terms) for which, terms in pure + mixed if which.any()]
    if len(chosen) == 1:
        return [_group(pairs, row, None, chosen[0][1])]
    chosen[0] = (chosen[0][0] | ~held, chosen[0][1])  # empty slots must be in some group
    return [_group(pairs, row, which, terms) for which, terms in chosen]


def _group(pairs: Pairs, row: int, which: Any, terms: tuple[int, ...]) -> Group:
    """Extract one row of the pairs, and the slots marked in ``which`` (None = all)."""
    found = backend_of(pairs.key_place)
    xp, here = found.xp, slice(row, row + 1)
    slots = None
    if which is not None:
        slots = found.from_numpy(which.nonzero()[0], device=found.device_of(pairs.key_place))

    def cut(array: Array) -> Array:
        array = array[here, ...]
        return array if slots is None or array.shape[2] == 1 else xp.take(array, slots, axis=2)

    def of(number: int) -> Pairs:
        term = pairs.terms[number]
        near = None
        if len(terms) > 1:
            at = cut(pairs.key_place)[:, :, None, None, :]
            distance = pairs.query_place[here, ..., None] - at
            near = _within(distance, term)
            for later in pairs.terms[number + 1 :]:
                near = near & ~_within(distance, later)
        at = None if term.key_at is None else cut(term.key_at)
        own = Term(term.query[here, ...], cut(term.plain_key), term.rotate, None, at)
        past = term.low is not None and term.low >= 0
        return Pairs(
            pairs.query_position[here, ...], cut(pairs.key_position), pairs.query_valid[here, :],
            cut(pairs.key_valid), cut(pairs.order), (own,), pairs.query_place[here, ...],
            cut(pairs.key_place), near=near, causal=pairs.causal and not past,
            scale=pairs.scale,
        )  # fmt: skip

    return Group(slots, tuple(of(number) for number in terms))


def _within(distance: Array, term: Term) -> Array:
    """Return which distances are within a term's bounds."""
    inside = distance == distance
    if term.low is not None:
        inside = inside & (distance >= term.low)
    return inside if term.high is None else inside & (distance < term.high)


def whole(groups: Sequence[Group], arrays: Sequence[Array]) -> Array:
    """Concatenate the arrays of the groups on the last axis, in the order of the slots."""
    if groups[0].slots is None:
        return arrays[0]
    found = backend_of(arrays[0])
    slots = np.concatenate([found.to_numpy(group.slots) for group in groups])
    back = np.empty_like(slots)
    back[slots] = np.arange(len(slots))
    index = found.from_numpy(back[None, :], device=found.device_of(arrays[0]))
    axis = arrays[0].ndim - 1
    return gather_slots(found.xp.concat(list(arrays), axis=axis), index, axis=axis)


def logits(pairs: Pairs) -> Array:
    """Multiply each slot only for the terms that it needs."""
    if len(pairs.terms) == 1:
        return NotImplemented
    rows = groups_of(pairs)
    if rows is None:
        return NotImplemented
    xp = namespace_of(pairs.query_valid)

    def of_group(group: Group) -> Array:
        first, *others = group.pairs
        result = logits_of(first.terms[0].query, first.terms[0].key)
        for other in others:
            own = logits_of(other.terms[0].query, other.terms[0].key)
            result = xp.where(other.near, own, result)
        return result

    results = [whole(groups, [of_group(group) for group in groups]) for groups in rows]
    return results[0] if len(results) == 1 else xp.concat(results, axis=0)
