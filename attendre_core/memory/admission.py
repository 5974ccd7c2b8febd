"""Who stays and who goes when new entries meet a memory of fixed size.

::

    slots    | 7 | 3 | . | 9 |     four slots, one empty          rank: (protected?, priority,
    new      | a   b   c |         three new entries, b refused          order of arrival)

    lowest slots, worst first   .  3  7
    new entries, best first     a  c  b        pair by pair: does the new one rank higher?
    admitted                    a→.  c→3  b✗

    slots    | 7 | c | a | 9 |     evicted | . | b | 3 |   entry i hands back what it displaced,
                                                          or itself when it is refused

The slots of the kept entries never move. One pass over the scores ranks them; keys and values
are touched only where something is written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.memory.arrivals import RECORDS, Arrivals, nothing
from attendre_core.memory.state import EvictedEntries, KeyValueState, stored_of
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.ties import RandomTies, tie_order
from attendre_core.tree import tree_leaves, tree_map, tree_of

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory

__all__ = [
    "Exchange",
    "Rank",
    "carry_out",
    "clear_room",
    "compete",
    "hand_back",
    "make_room",
    "rank",
]


class Rank(NamedTuple):
    """Compared first by ``primary``, then by ``order``; both (..., n), lower = goes first."""

    primary: Array
    order: Array


class Exchange(NamedTuple):
    """Who takes whose place.

    Attributes
    ----------
    new
        The entries, with scores, that meet a slot.
    slot, write
        (..., count): the slot that each of them meets, and whether it takes it.
    since
        int32, (batch,): entries that arrived from this clock on count as refused when they go.
    refused
        New entries that met no slot, because the chunk is longer than the memory; or None.
    """

    new: Arrivals
    slot: Array
    write: Array
    since: Array
    refused: Arrivals | None = None


def rank(
    policy: Policy,
    entries: Stored,
    clock: Array,
    *,
    sinks: int,
    protect_recent: int,
    ties: str | RandomTies,
) -> Rank:
    """Rank entries: empty < ordinary by priority < recent < pinned and sinks.

    Parameters
    ----------
    clock
        int32, (batch,): entries counted so far, those that arrive now included.
    """
    xp = namespace_of(entries.score)
    arrival = entries.arrival
    priority = policy.priority(entries)
    bound = float(xp.finfo(entries.score.dtype).max)
    if priority is None:
        primary, order = xp.zeros_like(entries.score), arrival
    else:
        # Below both tiers of protection; a priority that is NaN ranks last.
        primary, order = ops.bounded(priority, 0.5 * bound), tie_order(ties, arrival)
    by_arrival = ~entries.valid | entries.pinned
    if protect_recent:
        first = xp.reshape(clock - protect_recent, clock.shape + (1,) * (arrival.ndim - 1))
        recent = arrival >= first
        primary, by_arrival = xp.where(recent, bound, primary), by_arrival | recent
    pinned = entries.pinned
    if sinks:
        pinned = pinned | ((arrival < sinks) & (arrival >= 0))
        by_arrival = by_arrival | pinned
    primary = xp.where(pinned, float("inf"), primary)
    primary = xp.where(entries.valid, primary, -float("inf"))
    return Rank(primary, order if order is arrival else xp.where(by_arrival, arrival, order))


def _ranked(memory: KeyValueMemory, entries: Stored, clock: Array) -> Rank:
    return rank(
        memory.policy, entries, clock,
        sinks=memory.all_sinks, protect_recent=memory.protect_recent, ties=memory.ties,
    )  # fmt: skip


def compete(
    memory: KeyValueMemory, state: KeyValueState, new: Arrivals, params: Any = None
) -> Exchange:
    """Let new entries compete with the stored ones (the paper's order).

    Of a chunk that is longer than the memory only the best entries meet a slot.
    """
    stored = stored_of(state, params)
    new = new.scored_by(memory.policy, stored)
    mine = _ranked(memory, stored, new.clock)
    theirs = _ranked(memory, new.as_stored(), new.clock)
    slots, count = state.valid.shape[-1], new.valid.shape[-1]
    refused = None
    if count > slots:
        order = ops.lowest(*theirs, count)
        best, axis = order[..., count - slots :], order.ndim - 1
        new, refused = new.taken(best), new.taken(order[..., : count - slots])
        theirs = Rank(*(ops.gather_slots(x, best, axis=axis) for x in theirs))
    return Exchange(new, *ops.admit(*mine, *theirs), state.clock, refused)


def make_room(
    memory: KeyValueMemory, state: KeyValueState, new: Arrivals, params: Any = None
) -> Exchange:
    """Cut the chunks before down to the size and let the new chunk in whole.

    An entry that is not finite does not come in and is handed back. As many come back as there
    is room, so the best of those that would have gone stays instead until the next insertion;
    nothing is lost, and no more than size + chunk entries are held.
    """
    slots = state.key.shape[2]
    room, count = slots - memory.size, new.valid.shape[-1]
    if count > room:
        raise ConfigError(
            f"KeyValueMemory.insert: the chunk has {count} entries, but this state was made for "
            f"chunks of at most {room}. Make it with init(..., chunk={count}), or insert the "
            "chunk in parts."
        )
    new = new.padded(nothing(state, room - count))
    xp = namespace_of(state.key)
    stored = stored_of(state, params)
    lowest = ops.lowest(*_ranked(memory, stored, state.clock), room)
    # Entries that may not enter are paired with the highest of these slots.
    broken = new.valid & ~new.enter
    place = xp.where(broken, room - ops.running_count(broken), ops.running_count(~broken) - 1)
    slot = xp.take_along_axis(lowest, xp.astype(place, lowest.dtype), axis=-1)
    some = xp.reshape(new.count > 0, new.count.shape + (1,) * (slot.ndim - 1))
    write = some & ~broken
    (survives,) = ops.write_slots(
        [state.valid], slot, [xp.zeros_like(write)], write, axis=slot.ndim - 1
    )
    new = new.scored_by(memory.policy, stored._replace(valid=survives))
    return Exchange(new.cleared(slot, slots), slot, write, state.chunk_start)


def clear_room(memory: KeyValueMemory, state: KeyValueState) -> Exchange:
    """Make padding entries take the place of all entries beyond the size of the memory."""
    slots = state.key.shape[2]
    slot = ops.lowest(*_ranked(memory, stored_of(state), state.clock), slots - memory.size)
    empty = nothing(state, slot.shape[-1]).cleared(slot, slots)
    return Exchange(empty, slot, slot == slot, state.chunk_start)


def hand_back(state: KeyValueState, exchange: Exchange) -> EvictedEntries:
    """Return what goes: the displaced entry, or the new one where it is refused."""
    xp = namespace_of(state.key)
    new, slot, write, _, refused = exchange
    record = slot.ndim - 1

    def gone(name: str, axis: int = record) -> Any:
        def one(stored: Array, entries: Array, *others: Array) -> Array:
            held = ops.gather_slots(stored, slot, axis=axis)
            flags = write if axis == record else write[:, None, :]
            flags = xp.reshape(flags, flags.shape + (1,) * (held.ndim - flags.ndim))
            back = xp.where(flags, held, entries)
            return xp.concat([back, *others], axis=axis) if others else back

        parties = (state, new) if refused is None else (state, new, refused)
        return tree_map(one, *(getattr(party, name) for party in parties))

    return EvictedEntries(
        key=xp.permute_dims(gone("key", 2), (0, 2, 1, 3)),
        value=xp.permute_dims(gone("value", 2), (0, 2, 1, 3)),
        position=gone("position"),
        valid=gone("valid"),
        aux=gone("aux"),
        score=gone("score"),
        arrival=gone("arrival"),
    )


def carry_out(state: KeyValueState, exchange: Exchange, *, donate: bool) -> KeyValueState:
    """Write new entries into their slots and count what goes."""
    xp = namespace_of(state.key)
    new, slot, write, since, refused = exchange
    axis = slot.ndim - 1
    gone = xp.where(write, ops.gather_slots(state.valid, slot, axis=axis), new.valid)
    arrival = xp.where(write, ops.gather_slots(state.arrival, slot, axis=axis), new.arrival)
    late = arrival >= xp.reshape(since, since.shape + (1,) * axis)
    axes = tuple(range(1, axis + 1))
    evictions = state.evictions + ops.count_true(gone, axis=axes)
    refusals = state.refusals + ops.count_true(gone & late, axis=axes)
    if refused is not None:
        more = ops.count_true(refused.valid, axis=axes)
        evictions, refusals = evictions + more, refusals + more
    key, value = ops.write_slots(
        (state.key, state.value), slot, (new.key, new.value), write, axis=2, donate=donate
    )
    records = ops.write_slots(
        (*(getattr(state, name) for name in RECORDS), *tree_leaves(state.aux)),
        slot,
        (*(getattr(new, name) for name in RECORDS), *tree_leaves(new.aux)),
        write,
        axis=axis,
        donate=donate,
    )
    return state._replace(
        key=key,
        value=value,
        **dict(zip(RECORDS, records, strict=False)),
        aux=tree_of(state.aux, records[len(RECORDS) :]),
        clock=new.clock,
        chunk_start=xp.where(new.count > 0, state.clock, state.chunk_start),
        evictions=evictions,
        refusals=refusals,
    )
