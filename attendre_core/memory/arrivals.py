"""A chunk that is being inserted into a key-value memory, in the memory's layout."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.memory.state import KeyValueState, empty_like
from attendre_core.tree import tree_leaves, tree_map, tree_of

__all__ = ["RECORDS", "Arrivals", "cleared", "nothing", "padded", "taken"]

#: The per-entry fields of a state and of `Arrivals`, besides key, value and aux.
RECORDS = ("position", "valid", "score", "arrival", "pinned", "observed")


class Arrivals(NamedTuple):
    """New entries in the layout of the state: records are (batch, seq) [(batch, G, seq)].

    ``enter`` marks the entries that may enter: valid and finite. ``count`` and ``clock`` are
    (batch,): how many may enter, and the row's clock after all valid ones. ``scored`` is True if
    the caller gave the scores, ``full`` if none is padding because the caller named none.
    """

    key: Array
    value: Array
    position: Array
    valid: Array
    score: Array
    arrival: Array
    pinned: Array
    observed: Array
    enter: Array
    aux: Any
    count: Array
    clock: Array
    scored: bool
    full: bool


def taken(new: Arrivals, index: Array) -> Arrivals:
    """Select entries by index, (batch, n) [(batch, G, n)]."""
    leaves = tree_leaves(new.aux)
    key, value = ops.take_slots(new[:2], index, axis=2)
    enter, *records = ops.take_slots([new.enter, *new[2:8], *leaves], index, axis=index.ndim - 1)
    own = dict(zip(RECORDS, records, strict=False))
    aux = tree_of(new.aux, records[len(RECORDS) :])
    return new._replace(key=key, value=value, enter=enter, aux=aux, **own)


def padded(new: Arrivals, other: Arrivals) -> Arrivals:
    """Append padding entries."""
    axis = new.valid.ndim - 1
    if other.valid.shape[axis] == 0:
        return new
    xp = namespace_of(new.key)

    def joined(a: Array, b: Array, at: int = axis) -> Array:
        return xp.concat([a, b], axis=at)

    return new._replace(
        key=joined(new.key, other.key, 2),
        value=joined(new.value, other.value, 2),
        enter=joined(new.enter, other.enter),
        aux=tree_map(joined, new.aux, other.aux),
        full=new.full and other.full,
        **{name: joined(getattr(new, name), getattr(other, name)) for name in RECORDS},
    )


def cleared(new: Arrivals, slot: Array, slots: int) -> Arrivals:
    """Blank the invalid entries, so that writing one leaves an empty slot of zeros."""
    if new.full:
        return new
    xp = namespace_of(new.key)
    empty = xp.astype(slot, xp.int32) - slots
    real = new.valid if new.valid.ndim == 3 else new.valid[:, None, :]

    def blank(x: Array) -> Array:
        # Masking is not enough: a weight of zero times NaN is NaN.
        return ops.fill(x, ~real[..., None], 0.0)

    return new._replace(
        key=blank(new.key),
        value=blank(new.value),
        position=xp.where(new.valid, new.position, xp.full_like(new.position, -1)),
        score=xp.where(new.valid, new.score, xp.zeros_like(new.score)),
        arrival=xp.where(new.valid, new.arrival, empty),
    )


def nothing(state: KeyValueState, count: int) -> Arrivals:
    """Return ``count`` padding entries."""
    empty = empty_like(state, slots=count)
    return Arrivals(
        **{name: getattr(empty, name) for name in ("key", "value", *RECORDS, "aux")},
        enter=empty.valid,
        count=namespace_of(state.key).zeros_like(state.clock),
        clock=state.clock,
        scored=True,
        full=count == 0,
    )
