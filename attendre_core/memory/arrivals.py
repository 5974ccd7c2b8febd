"""A chunk on its way into a key-value memory: checked, numbered, in the memory's layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.errors import ShapeError
from attendre_core.memory.state import KeyValueState, empty_like
from attendre_core.policies.base import Policy, Stored
from attendre_core.tree import tree_map

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory

__all__ = ["RECORDS", "Arrivals", "arrivals", "nothing"]

#: The fields that a state and arriving entries have for each entry, besides key, value and aux.
RECORDS = ("position", "valid", "score", "arrival", "pinned", "observed")
_ONE_EACH = "Give one number to each entry of each row."


class Arrivals(NamedTuple):
    """New entries in the layout of the state: records are (batch, seq) [(batch, G, seq)].

    ``enter`` is what may enter: valid and finite. ``count`` and ``clock`` are (batch,): how many
    may enter, and the clock after them. ``scored``: the caller gave the scores.
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

    def as_stored(self) -> Stored:
        """Return what a policy may know when these entries compete."""
        return Stored(
            self.score, self.position, self.enter, self.arrival, self.pinned, self.observed,
            self.key, self.value, self.aux, self.clock,
        )  # fmt: skip

    def scored_by(self, policy: Policy, stored: Stored) -> Arrivals:
        """Give new entries the policy's initial score, unless the caller gave them one."""
        if self.scored:
            return self
        xp = namespace_of(stored.score)
        start = policy.enter(stored, self._replace(valid=self.enter))
        per_row, per_entry = tuple(stored.score.shape[:-1]), tuple(self.score.shape)
        given = tuple(start.shape)
        if given == per_row:
            start = xp.broadcast_to(start[..., None], per_entry)
        elif given != per_entry:
            raise ShapeError(
                f"{type(policy).__name__}.enter: returned shape {given}, expected {per_row}, one "
                f"score for each row, or {per_entry}, one for each new entry."
            )
        start = xp.astype(start, stored.score.dtype)
        if given == per_entry:
            finite = checks.finite_scores(f"{type(policy).__name__}.enter", start, self.enter)
            start = xp.where(finite, start, xp.zeros_like(start))
        return self._replace(score=start)

    def taken(self, index: Array) -> Arrivals:
        """Take some of the entries, (batch, n) [(batch, G, n)]."""
        axis = index.ndim - 1

        def take(x: Array) -> Array:
            return ops.gather_slots(x, index, axis=axis)

        return self._replace(
            key=ops.gather_slots(self.key, index, axis=2),
            value=ops.gather_slots(self.value, index, axis=2),
            enter=take(self.enter),
            aux=tree_map(take, self.aux),
            **{name: take(getattr(self, name)) for name in RECORDS},
        )

    def padded(self, other: Arrivals) -> Arrivals:
        """Put padding entries behind."""
        axis = self.valid.ndim - 1
        if other.valid.shape[axis] == 0:
            return self
        xp = namespace_of(self.key)

        def joined(a: Array, b: Array, at: int = axis) -> Array:
            return xp.concat([a, b], axis=at)

        return self._replace(
            key=joined(self.key, other.key, 2),
            value=joined(self.value, other.value, 2),
            enter=joined(self.enter, other.enter),
            aux=tree_map(joined, self.aux, other.aux),
            **{name: joined(getattr(self, name), getattr(other, name)) for name in RECORDS},
        )

    def cleared(self, slot: Array, slots: int) -> Arrivals:
        """Make padding fit to be written: what it leaves behind is an empty slot of zeros."""
        xp = namespace_of(self.key)
        empty = xp.astype(slot, xp.int32) - slots
        real = self.valid if self.valid.ndim == 3 else self.valid[:, None, :]

        def blank(x: Array) -> Array:
            # Not only hidden: a weight of zero times NaN is NaN.
            return xp.where(real[..., None], x, xp.zeros_like(x))

        return self._replace(
            key=blank(self.key),
            value=blank(self.value),
            position=xp.where(self.valid, self.position, xp.full_like(self.position, -1)),
            score=xp.where(self.valid, self.score, xp.zeros_like(self.score)),
            arrival=xp.where(self.valid, self.arrival, empty),
        )


def arrivals(
    where: str,
    memory: KeyValueMemory,
    state: KeyValueState,
    key: Array,
    value: Array,
    position: Array | None,
    valid: Array | None,
    aux: Any,
    pinned: Array | None,
    score: Array | None,
) -> Arrivals:
    """Check what a caller inserts and bring it into the layout of the state."""
    xp = namespace_of(state.key)
    batch, heads, _, dim = state.key.shape
    axes, hint = "batch, seq, heads, head_dim", "Split the heads before inserting."
    checks.shape(where, "key", key, axes, (batch, None, heads, dim), hint)
    seq = key.shape[1]
    checks.shape(where, "value", value, axes, (batch, seq, heads, state.value.shape[3]), hint)
    checks.same_dtype(where, "key", key, state.key.dtype)
    checks.same_dtype(where, "value", value, state.value.dtype)
    valid = checks.flags(where, "valid", valid, (batch, seq), key, default=True)
    number = ops.running_count(valid)
    arrival = state.clock[:, None] + number - 1
    if position is None:
        position = arrival
    else:
        checks.shape(where, "position", position, "batch, seq", (batch, seq), _ONE_EACH)
        position = checks.positions(where, "position", position)
    enter = valid & checks.finite_rows(where, "key", key, valid, (0, 1))
    enter = enter & checks.finite_rows(where, "value", value, valid, (0, 1))
    kind = state.score.dtype
    start = xp.zeros_like(valid, dtype=kind)
    if score is not None:
        checks.shape(where, "score", score, "batch, seq", (batch, seq), _ONE_EACH)
        enter = enter & checks.finite_rows(where, "score", score, valid, (0, 1))
        start = xp.where(enter, xp.astype(score, kind), start)
    pins = checks.flags(where, "pinned", pinned, (batch, seq), key, default=False)
    for first, stop in memory.pin:
        pins = pins | ((position >= first) & (position < stop))
    if memory.pin or pinned is not None:
        pins = pins & enter
        checks.room_for_pins(where, memory.size, state.pinned & state.valid, pins)
    checks.metadata(where, state.aux, aux, (batch, seq), state.valid.ndim)
    padding = xp.zeros_like(arrival) - 1 - numbers(seq, key)

    def record(x: Array) -> Array:
        """Give a (batch, seq, ...) array the axes of the state's records."""
        if not memory.per_head:
            return x
        return xp.broadcast_to(x[:, None, ...], (batch, heads, *x.shape[1:]))

    return Arrivals(
        key=xp.permute_dims(key, (0, 2, 1, 3)),
        value=xp.permute_dims(value, (0, 2, 1, 3)),
        position=record(position),
        valid=record(valid),
        score=record(start),
        arrival=record(xp.where(valid, arrival, padding)),
        pinned=record(pins),
        observed=record(xp.zeros_like(valid)),
        enter=record(enter),
        aux=tree_map(record, aux),
        count=ops.count_true(enter, axis=1),
        clock=state.clock + ops.count_true(valid, axis=1),
        scored=score is not None,
    )


def nothing(state: KeyValueState, count: int) -> Arrivals:
    """Return padding entries, as many as asked for."""
    empty = empty_like(state, slots=count)
    return Arrivals(
        **{name: getattr(empty, name) for name in ("key", "value", *RECORDS, "aux")},
        enter=empty.valid,
        count=namespace_of(state.key).zeros_like(state.clock),
        clock=state.clock,
        scored=True,
    )
