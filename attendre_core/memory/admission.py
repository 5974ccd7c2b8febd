"""Which entries stay when new ones are inserted into a memory of fixed size.

::

    slots    | 7 | 3 | . | 9 |     four slots, one empty          rank: (protected?, priority,
    new      | a   b   c |         three new entries, b refused          order of arrival)

    lowest slots, worst first   .  3  7
    new entries, best first     a  c  b        pair by pair: does the new one rank higher?
    admitted                    a→.  c→3  b✗

    slots    | 7 | c | a | 9 |     evicted | . | b | 3 |   entry i hands back what it displaced,
                                                          or itself when it is refused

Kept entries stay in their slots; keys and values are touched only where something is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.errors import ShapeError
from attendre_core.memory.arrivals import RECORDS, Arrivals, taken
from attendre_core.memory.state import CLOSED, EvictedEntries, KeyValueState
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.ties import RandomTies
from attendre_core.tree import tree_leaves, tree_map, tree_of

if TYPE_CHECKING:
    from attendre_core.memory.spec import KeyValueSpec

__all__ = [
    "Exchange", "Rank", "arriving", "carry_out", "compete", "counted", "displaced", "hand_back",
    "rank", "ranked", "scored",
]  # fmt: skip


class Rank(NamedTuple):
    """Entries compare by ``primary``, then by ``order``, both (..., n); the lowest go first."""

    primary: Array
    order: Array


class Exchange(NamedTuple):
    """Which new entry takes which slot.

    Attributes
    ----------
    new
        The new entries that are paired with a slot, with their scores.
    slot, write
        (..., count): the slot that each is paired with, and whether the entry is written to it.
    since
        int32, (batch,): of the evicted entries, those with at least this arrival number are
        counted as refused.
    refused
        New entries without a slot, because the chunk is longer than the memory; or None.
    """

    new: Arrivals
    slot: Array
    write: Array
    since: Array
    refused: Arrivals | None = None


def arriving(
    where: str, memory: KeyValueSpec, state: KeyValueState, key: Array, value: Array, *given: Any
) -> Arrivals:
    """Check a chunk (key, value, position, valid, aux, pinned, score); return it as `Arrivals`."""
    xp = namespace_of(state.key)
    position, valid, enter, score, pins, arrival = checks.entries(
        where, memory, state, key, value, *given
    )
    aux, full = given[2], given[1] is None

    def record(x: Array) -> Array:
        """Add an axis for K/V heads to a (batch, seq, ...) array."""
        return xp.broadcast_to(x[:, None, ...], (x.shape[0], key.shape[2], *x.shape[1:]))

    count = ops.count_true(enter, axis=1)
    clock = state.clock + (key.shape[1] if full else ops.count_true(valid, axis=1))
    if not full:
        arrival = xp.where(valid, arrival, -1 - numbers(key.shape[1], key))
    entries: tuple[Any, ...] = (position, valid, score, arrival, pins, xp.zeros_like(valid), enter)
    if memory.per_head:
        entries, aux = tuple(record(x) for x in entries), tree_map(record, aux)
    key, value = xp.permute_dims(key, (0, 2, 1, 3)), xp.permute_dims(value, (0, 2, 1, 3))
    return Arrivals(*(key, value, *entries, aux, count, clock, given[4] is not None, full))


def scored(policy: Policy, stored: Stored, new: Arrivals) -> Arrivals:
    """Give new entries the policy's initial score, unless the caller gave them one."""
    if new.scored:
        return new
    xp = namespace_of(stored.score)
    start = policy.enter(stored, new._replace(valid=new.enter))
    per_row, per_entry = tuple(stored.score.shape[:-1]), tuple(new.score.shape)
    given = tuple(start.shape)
    if given == per_row:
        start = xp.broadcast_to(start[..., None], per_entry)
    elif given != per_entry:
        raise ShapeError(
            f"{type(policy).__name__}.enter: returned shape {given}, expected {per_row}, one "
            f"score for each row, or {per_entry}, one for each new entry."
        )
    start = xp.astype(start, stored.score.dtype, copy=False)
    if given == per_entry:
        finite = checks.finite_scores(f"{type(policy).__name__}.enter", start, new.enter)
        start = xp.where(finite, start, xp.zeros_like(start))
    return new._replace(score=start)


def rank(
    policy: Policy,
    entries: Stored,
    clock: Array,
    *,
    sinks: int,
    protect_recent: int,
    ties: str | RandomTies,
) -> Rank:
    """Rank entries: empty < ordinary, by priority < recent < pinned and sinks.

    Parameters
    ----------
    clock
        int32, (batch,): entries inserted so far, including those that arrive now.
    """
    xp = namespace_of(entries.score)
    arrival = entries.arrival
    priority = policy.priority(entries)
    bound = float(xp.finfo(entries.score.dtype).max)
    if priority is None:
        primary, order = xp.zeros_like(entries.score), arrival
    else:
        # Below both tiers of protection; a NaN priority ranks lowest.
        primary = ops.bounded(priority, 0.5 * bound)
        order = ties.order(arrival) if isinstance(ties, RandomTies) else arrival
    pinned = entries.pinned
    if sinks:
        pinned = pinned | ((arrival < sinks) & (arrival >= 0))
    by_arrival = [pinned]
    if protect_recent:
        first = xp.reshape(clock - protect_recent, clock.shape + (1,) * (arrival.ndim - 1))
        recent = arrival >= first
        primary = ops.fill(primary, recent, bound)
        by_arrival.append(recent)
    primary = ops.fill(primary, pinned, float("inf"))
    primary = xp.where(entries.valid, primary, -float("inf"))
    if order is not arrival:
        order = xp.where(entries.valid, order, arrival)
        for flags in by_arrival:
            order = xp.where(flags, arrival, order)
    return Rank(primary, order)


def ranked(memory: KeyValueSpec, entries: Stored, clock: Array) -> Rank:
    """Rank the entries of a key-value memory."""
    found = rank(
        memory.policy, entries, clock,
        sinks=max(memory.sinks, memory.policy.sinks),
        protect_recent=memory.protect_recent, ties=memory.ties,
    )  # fmt: skip
    if not memory.head_sizes:
        return found
    shut = entries.arrival == CLOSED
    return found._replace(primary=ops.fill(found.primary, shut, float("inf")))


def compete(
    memory: KeyValueSpec, state: KeyValueState, new: Arrivals, params: Any = None
) -> Exchange:
    """Let new entries compete with the stored ones (the paper's order).

    If the chunk is longer than the memory, only its best entries are paired with slots.
    """
    stored = Stored(*state[:10], state.policy_state, params)
    new = scored(memory.policy, stored, new)
    # Both sides as the policy sees them now: the same clock, state and parameters.
    rank_stored = ranked(memory, stored._replace(clock=new.clock), new.clock)
    arrived = Stored(*new[:3], new.enter, *new[4:8], new.aux, new.clock, state.policy_state, params)
    rank_new = ranked(memory, arrived, new.clock)
    slots, count = state.valid.shape[-1], new.valid.shape[-1]
    refused = None
    if count > slots:
        order = ops.lowest(*rank_new, count)
        best, axis = order[..., count - slots :], order.ndim - 1
        new, refused = taken(new, best), taken(new, order[..., : count - slots])
        rank_new = Rank(*(ops.gather_slots(x, best, axis=axis) for x in rank_new))
    return Exchange(new, *ops.admit(*rank_stored, *rank_new), state.clock, refused)


def displaced(
    state: KeyValueState, exchange: Exchange, names: Sequence[str]
) -> tuple[list[Array], list[Array], Any]:
    """Return keys and values, some records, and the metadata of what new entries displace.

    Where a new entry is refused, it is that entry.
    """
    xp, axis = namespace_of(state.key), exchange.slot.ndim - 1
    new, slot, write, _, refused = exchange

    def records_of(party: KeyValueState | Arrivals) -> list[Array]:
        return [*(getattr(party, name) for name in names), *tree_leaves(party.aux)]

    wide = ops.displaced(state[:2], slot, new[:2], write, axis=2)
    records = ops.displaced(records_of(state), slot, records_of(new), write, axis=axis)
    if refused is not None:
        wide = [xp.concat(both, axis=2) for both in zip(wide, refused[:2], strict=True)]
        pairs = zip(records, records_of(refused), strict=True)
        records = [xp.concat(both, axis=axis) for both in pairs]
    return wide, records[: len(names)], tree_of(state.aux, records[len(names) :])


def hand_back(state: KeyValueState, exchange: Exchange) -> EvictedEntries:
    """Return what was evicted: the displaced entry, or the new one where it was refused."""
    xp, names = namespace_of(state.key), ("position", "valid", "score", "arrival")
    wide, (position, valid, *rest), aux = displaced(state, exchange, names)
    key, value = (xp.permute_dims(x, (0, 2, 1, 3)) for x in wide)
    return EvictedEntries(key, value, position, valid, aux, *rest)


def counted(own: KeyValueState, held: KeyValueState, exchange: Exchange) -> tuple[Array, Array]:
    """Return the evictions and refusals of ``own`` after an exchange in the slots of ``held``."""
    new, slot, write, since, refused = exchange
    counts, stored = (own.evictions, own.refusals), (held.valid, held.arrival)
    counts = ops.count_evicted(counts, stored, slot, (new.valid, new.arrival), write, since)
    if refused is None:
        return counts
    without_slot = ops.count_true(refused.valid, axis=tuple(range(1, slot.ndim)))
    return counts[0] + without_slot, counts[1] + without_slot


def carry_out(state: KeyValueState, exchange: Exchange, *, donate: bool) -> KeyValueState:
    """Write the new entries into their slots and count what is evicted."""
    xp = namespace_of(state.key)
    new, slot, write, *_ = exchange
    axis = slot.ndim - 1
    evictions, refusals = counted(state, state, exchange)
    key, value = ops.write_slots(
        (state.key, state.value), slot, (new.key, new.value), write, axis=2, donate=donate
    )
    records = ops.write_slots(
        (*state[2:8], *tree_leaves(state.aux)), slot, (*new[2:8], *tree_leaves(new.aux)), write,
        axis=axis, donate=donate,
    )  # fmt: skip
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
