"""One insertion into a key-value memory, from ranking to what is handed back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from attendre_core import checks
from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.memory.chunk import NewEntries
from attendre_core.memory.insertion import (
    Plan,
    Rank,
    exchange,
    plan_at_once,
    plan_exchange,
    plan_newest_first,
    plan_room,
    plan_sources,
    rank_entries,
)
from attendre_core.memory.state import EvictedEntries, KeyValueState, empty_like, grown
from attendre_core.ops.branches import all_true
from attendre_core.ops.counting import count_true
from attendre_core.ops.slots import exchange_slots, gather_slots, write_slots
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.fifo import FIFO
from attendre_core.policies.initial_score import InitialScore
from attendre_core.policies.lfa import LFA
from attendre_core.policies.lfu import LFU
from attendre_core.policies.lra import LRA
from attendre_core.policies.lru import LRU
from attendre_core.tree import tree_leaves, tree_of

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory

__all__ = ["clear_room", "insert_competing", "insert_visible", "stored_of"]

_RECORDS = ("position", "valid", "score", "arrival", "pinned", "observed")


def _records(entries: KeyValueState | NewEntries) -> tuple[Array, ...]:
    return tuple(getattr(entries, name) for name in _RECORDS)


def stored_of(state: KeyValueState) -> Stored:
    """Return what a policy may know about a state."""
    return Stored(
        state.score, state.position, state.valid, state.arrival, state.pinned, state.observed
    )


def insert_competing(
    memory: KeyValueMemory,
    state: KeyValueState,
    new: NewEntries,
    donate: bool,
    hand_back: bool = True,
) -> tuple[KeyValueState, EvictedEntries | None]:
    """Let new entries compete at once: they may be refused (the paper's order)."""
    stored = stored_of(state)
    in_order = new.plain and _ranks_by_arrival(memory) and new.valid.shape[-1] <= memory.size
    initial = _plain_start(memory) if in_order else None
    at_once = None if initial is None else plan_at_once(initial, stored, new.arrival)
    if at_once is not None:
        new = _starting(new, at_once[0])
        return _carry_out(state, new, at_once[1], state.clock, donate, hand_back)
    stored = stored._replace(whole=all_true(stored.valid & ~stored.pinned))
    new = _with_scores(memory, new, stored)
    offered = Stored(
        new.score, new.position, new.enter, new.arrival, new.pinned, new.observed, new.plain
    )
    pair = plan_newest_first if in_order else plan_exchange
    plan = pair(_rank(memory, stored, new.clock), _rank(memory, offered, new.clock))
    return _carry_out(state, new, plan, state.clock, donate, hand_back)


def _ranks_by_arrival(memory: KeyValueMemory) -> bool:
    """Whether of entries with one score, none pinned, a later one never ranks lower."""
    by_score = type(memory.policy).priority in (Policy.priority, FIFO.priority)
    return by_score and memory.policy.sinks == 0 and memory.ties == "recency"


def _plain_start(memory: KeyValueMemory) -> InitialScore | None:
    """Return the rule for new scores, if nothing else decides how entries compete."""
    policy = memory.policy
    if memory.protect_recent or type(policy) not in (LRA, LFA, LRU, LFU):
        return None
    initial = policy.initial  # type: ignore[attr-defined]
    return initial if type(initial) is InitialScore else None


def insert_visible(
    memory: KeyValueMemory,
    state: KeyValueState,
    new: NewEntries,
    donate: bool,
    hand_back: bool = True,
) -> tuple[KeyValueState, EvictedEntries | None]:
    """Cut the chunks before down to the size and let the new chunk in whole.

    A broken entry does not come in and is handed back. As many come back as there is room, so
    the best of those that would have gone stays in its stead until the next insertion; nothing
    is lost, and no more than size + chunk entries are held.
    """
    room, count = state.key.shape[2] - memory.size, new.valid.shape[-1]
    if room == 0:
        state = grown(state, count)
        room, donate = count, True
    if count > room:
        raise ConfigError(
            f"KeyValueMemory.insert: the chunk has {count} entries, but this state was made for "
            f"chunks of at most {room}. Make it with init(..., chunk={count}), or insert the "
            "chunk in parts."
        )
    if count < room:
        new = new.padded(_nothing(state, room - count))
    stored = stored_of(state)
    # Where values may be read, a broken entry has raised an error already.
    refused = None if checks.may_read(new.valid) else new.broken
    plan = plan_room(_rank(memory, stored, state.clock), room, new.count > 0, refused)
    xp = backend_of(state.key).xp
    axis = state.valid.ndim - 1
    nothing = xp.zeros_like(plan.write)
    (survives,), _ = exchange_slots([state.valid], plan.slot, [nothing], plan.write, axis=axis)
    new = _with_scores(memory, new, stored._replace(valid=survives))
    if not new.plain:
        new = new.cleared(plan.slot, state.key.shape[2])
    return _carry_out(state, new, plan, state.chunk_start, donate, hand_back)


def clear_room(
    memory: KeyValueMemory, state: KeyValueState
) -> tuple[KeyValueState, EvictedEntries]:
    """Cut a state down to the size of the memory and hand back what goes."""
    xp = backend_of(state.key).xp
    room = state.key.shape[2] - memory.size
    nothing = _nothing(state, room)
    if room == 0:
        return state, EvictedEntries(
            xp.permute_dims(nothing.key, (0, 2, 1, 3)),
            xp.permute_dims(nothing.value, (0, 2, 1, 3)),
            nothing.position,
            nothing.valid,
            nothing.aux,
            nothing.score,
            nothing.arrival,
        )
    everywhere = xp.ones_like(state.clock) > 0
    plan = plan_room(_rank(memory, stored_of(state), state.clock), room, everywhere)
    nothing = nothing.cleared(plan.slot, state.key.shape[2])
    state, evicted = _carry_out(state, nothing, plan, state.chunk_start, False)
    return state, cast("EvictedEntries", evicted)


def _rank(memory: KeyValueMemory, entries: Stored, clock: Array) -> Rank:
    return rank_entries(
        memory.policy,
        entries,
        clock=clock,
        protect_recent=memory.protect_recent,
        ties=memory.ties,
    )


def _with_scores(memory: KeyValueMemory, new: NewEntries, stored: Stored) -> NewEntries:
    """Give new entries the policy's initial score, unless the caller gave them one."""
    if new.scored:
        return new
    xp = backend_of(stored.score).xp
    expected = tuple(stored.score.shape[:-1])
    count = xp.broadcast_to(
        xp.reshape(new.count, new.count.shape + (1,) * (len(expected) - 1)), expected
    )
    start = memory.policy.enter(stored, count)
    if tuple(start.shape) != expected:
        raise ShapeError(
            f"{type(memory.policy).__name__}.enter: returned shape {tuple(start.shape)}, "
            f"expected {expected}. Return one score for each row."
        )
    return _starting(new, xp.astype(start, stored.score.dtype))


def _starting(new: NewEntries, start: Array) -> NewEntries:
    """Give all new entries of a row one score."""
    xp = backend_of(start).xp
    return new._replace(score=xp.broadcast_to(start[..., None], new.score.shape))


def _carry_out(
    state: KeyValueState,
    new: NewEntries,
    plan: Plan,
    since: Array,
    donate: bool,
    hand_back: bool = True,
) -> tuple[KeyValueState, EvictedEntries | None]:
    """Exchange slots with new entries as planned.

    ``since``, (batch,), is the clock before the chunk whose entries count as refused.
    """
    if not hand_back and plan.source is None:
        return _write(state, new, plan, since, donate), None
    xp = backend_of(state.key).xp
    sources = plan_sources(plan, state.key.shape[2])
    (key, value), out_entry = exchange(
        (state.key, state.value), (new.key, new.value), plan,
        axis=2, donate=donate, sources=sources,
    )  # fmt: skip
    records, out_records = exchange(
        (*_records(state), *tree_leaves(state.aux)),
        (*_records(new), *tree_leaves(new.aux)),
        plan, axis=state.valid.ndim - 1, donate=donate, sources=sources,
    )  # fmt: skip
    after = dict(zip(_RECORDS, records, strict=False), key=key, value=value)
    out = dict(zip(_RECORDS, out_records, strict=False))
    gone = out["valid"]
    after["aux"] = tree_of(state.aux, records[len(_RECORDS) :])
    state = _counted(state, new, after, gone, out["arrival"], since)
    return state, EvictedEntries(
        key=xp.permute_dims(out_entry[0], (0, 2, 1, 3)),
        value=xp.permute_dims(out_entry[1], (0, 2, 1, 3)),
        position=out["position"],
        valid=gone,
        aux=tree_of(new.aux, out_records[len(_RECORDS) :]),
        score=out["score"],
        arrival=out["arrival"],
    )


def _write(
    state: KeyValueState, new: NewEntries, plan: Plan, since: Array, donate: bool
) -> KeyValueState:
    """Do what `_carry_out` does for a caller who does not look at what went: copy less."""
    xp = backend_of(state.key).xp
    axis = state.valid.ndim - 1
    held = gather_slots(state.valid, plan.slot, axis=axis)
    gone = xp.where(plan.write, held, new.valid)
    since_when = gather_slots(state.arrival, plan.slot, axis=axis)
    arrival = xp.where(plan.write, since_when, new.arrival)
    key, value = write_slots(
        (state.key, state.value), plan.slot, (new.key, new.value), plan.write,
        axis=2, donate=donate,
    )  # fmt: skip
    records = write_slots(
        (*_records(state), *tree_leaves(state.aux)),
        plan.slot,
        (*_records(new), *tree_leaves(new.aux)),
        plan.write,
        axis=axis,
        donate=donate,
    )
    after = dict(zip(_RECORDS, records, strict=False), key=key, value=value)
    after["aux"] = tree_of(state.aux, records[len(_RECORDS) :])
    return _counted(state, new, after, gone, arrival, since)


def _counted(
    state: KeyValueState,
    new: NewEntries,
    after: dict[str, Any],
    gone: Array,
    arrival: Array,
    since: Array,
) -> KeyValueState:
    """Make the state after an insertion; ``gone`` and ``arrival`` tell what went."""
    xp = backend_of(gone).xp
    late = arrival >= xp.reshape(since, since.shape + (1,) * (gone.ndim - 1))
    axes = tuple(range(1, gone.ndim))
    evictions = state.evictions + count_true(gone, axis=axes)
    refusals = state.refusals + count_true(gone & late, axis=axes)
    moved = new.count > 0
    return KeyValueState(
        **after,
        clock=new.clock,
        latest_query=state.latest_query,
        chunk_start=xp.where(moved, state.clock, state.chunk_start),
        evictions=evictions,
        refusals=refusals,
    )


def _nothing(state: KeyValueState, count: int) -> NewEntries:
    """Return padding entries, as many as asked for."""
    empty = empty_like(state, slots=count)
    xp = backend_of(state.key).xp
    return NewEntries(
        **{name: getattr(empty, name) for name in ("key", "value", *_RECORDS, "aux")},
        enter=empty.valid,
        count=xp.zeros_like(state.clock),
        clock=state.clock,
        scored=True,
    )
