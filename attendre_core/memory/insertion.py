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

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.backend import Array, kernel, namespace_of
from attendre_core.ops.counting import running_count
from attendre_core.ops.selection import bounded, lowest
from attendre_core.ops.slots import exchange_slots, gather_slots, slot_sources
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.initial_score import SNAP_RANGES, InitialScore
from attendre_core.policies.ties import RandomTies, tie_order

__all__ = [
    "Plan",
    "Rank",
    "exchange",
    "plan_at_once",
    "plan_exchange",
    "plan_newest_first",
    "plan_room",
    "plan_sources",
    "rank_entries",
]


class Rank(NamedTuple):
    """Compared first by ``primary``, then by ``order``; both (..., n), lower = goes first."""

    primary: Array
    order: Array


class Plan(NamedTuple):
    """Which slot each pair exchanges with.

    Attributes
    ----------
    slot
        (..., pairs): the slot.
    write
        Boolean, (..., pairs): the new entry of this pair goes into the slot.
    source
        (..., pairs): which new entry it is; None when pair i is entry i.
    rest
        (..., count - pairs): new entries beyond the number of slots; None when there are none.
    """

    slot: Array
    write: Array
    source: Array | None
    rest: Array | None


def rank_entries(
    policy: Policy,
    stored: Stored,
    *,
    clock: Array,
    protect_recent: int,
    ties: str | RandomTies,
) -> Rank:
    """Rank entries: empty < ordinary by priority < recent < pinned and sinks.

    Parameters
    ----------
    clock
        int32, (batch,): entries counted so far, those that arrive now included.
    """
    xp = namespace_of(stored.score)
    priority = policy.priority(stored)
    order = stored.arrival
    bound = float(xp.finfo(stored.score.dtype).max)
    if priority is None:
        primary = xp.zeros_like(stored.score)
    else:
        # Below both tiers of protection; a priority that is NaN ranks last.
        primary = bounded(priority, 0.5 * bound)
        order = tie_order(ties, order)
    if protect_recent:
        first = xp.reshape(clock - protect_recent, clock.shape + (1,) * (order.ndim - 1))
        recent = stored.arrival >= first
        primary = xp.where(recent, bound, primary)
        order = _by_arrival(stored, recent, order)
    if stored.whole and not policy.sinks:
        return Rank(primary, order)
    pinned = stored.pinned
    if policy.sinks:
        pinned = pinned | ((stored.arrival < policy.sinks) & (stored.arrival >= 0))
    primary = xp.where(pinned, float("inf"), primary)
    order = _by_arrival(stored, pinned, order)
    primary = xp.where(stored.valid, primary, -float("inf"))
    return Rank(primary, _by_arrival(stored, ~stored.valid, order))


def _by_arrival(stored: Stored, flags: Array, order: Array) -> Array:
    """Order the flagged entries by arrival, which all are unless ties are random."""
    if order is stored.arrival:
        return order
    return namespace_of(order).where(flags, stored.arrival, order)


def plan_exchange(stored: Rank, new: Rank) -> Plan:
    """Pair the lowest slots with the best new entries and admit those that rank higher."""
    xp = namespace_of(stored.primary)
    count, slots = new.order.shape[-1], stored.order.shape[-1]
    pairs = min(count, slots)
    worst = lowest(stored.primary, stored.order, pairs)
    best = xp.flip(lowest(new.primary, new.order, count), axis=-1)
    source = best[..., :pairs]
    write = _higher(_rank_at(new, source), _rank_at(stored, worst))
    if count > slots:
        return Plan(worst, write, source, best[..., pairs:])
    back = xp.argsort(source, axis=-1, stable=True)
    axis = back.ndim - 1
    return Plan(
        gather_slots(worst, back, axis=axis), gather_slots(write, back, axis=axis), None, None
    )


def plan_newest_first(stored: Rank, new: Rank) -> Plan:
    """Do what `plan_exchange` does for new entries that stand in the order of their rank.

    They must not be more than the slots. Nothing has to be sorted but the slots.
    """
    xp = namespace_of(stored.primary)
    slot = xp.flip(lowest(stored.primary, stored.order, new.order.shape[-1]), axis=-1)
    return Plan(slot, _higher(new, _rank_at(stored, slot)), None, None)


def plan_at_once(initial: InitialScore, stored: Stored, come: Array) -> tuple[Array, Plan] | None:
    """Score and plan in one call, where a backend can: for entries that compete by score alone.

    Parameters
    ----------
    come
        int32, (..., count): the arrival of new entries that all are real and not pinned, in this
        order; not more than the slots.

    Returns
    -------
    start, plan
        The initial score, (...), and what `plan_newest_first` returns; None where the backend
        cannot, or the memory is not full of entries that compete.
    """
    fast = kernel("admit", stored.score)
    if fast is None:
        return None
    found = fast(
        stored.score, stored.valid, stored.pinned, stored.arrival, come, initial.sigmas, SNAP_RANGES
    )
    if found is None:
        return None
    start, slot, write = found
    return start, Plan(slot, write, None, None)


def _higher(come: Rank, old: Rank) -> Array:
    """Tell which new entries rank higher than the old ones they are paired with."""
    higher = (come.primary > old.primary) | (
        (come.primary == old.primary) & (come.order > old.order)
    )
    return higher & (come.primary > -float("inf"))


def plan_room(stored: Rank, count: int, active: Array, refused: Array | None = None) -> Plan:
    """Clear the lowest ``count`` slots of the active rows for new entries, whatever comes.

    Parameters
    ----------
    refused
        Boolean, (..., count): new entries that may not enter and are handed back at once. They
        are paired with the highest of these slots, which keep what they hold.
    """
    xp = namespace_of(stored.primary)
    slot = lowest(stored.primary, stored.order, count)
    active = xp.reshape(active, active.shape + (1,) * (slot.ndim - 1))
    write = xp.broadcast_to(active, slot.shape)
    if refused is None:
        return Plan(slot, write, None, None)
    place = xp.where(refused, count - running_count(refused), running_count(~refused) - 1)
    slot = xp.take_along_axis(slot, xp.astype(place, slot.dtype), axis=-1)
    return Plan(slot, write & ~refused, None, None)


def plan_sources(plan: Plan, slots: int) -> tuple[Array, Array] | None:
    """Prepare a plan for many arrays, where the generic op would work it out for each."""
    if kernel("exchange_slots", plan.slot) is not None:
        return None
    return slot_sources(plan.slot, plan.write, slots)


def exchange(
    arrays: Sequence[Array],
    new: Sequence[Array],
    plan: Plan,
    *,
    axis: int,
    donate: bool = False,
    sources: tuple[Array, Array] | None = None,
) -> tuple[list[Array], list[Array]]:
    """Carry out a plan on several arrays.

    Parameters
    ----------
    arrays
        Each (lead..., slots, rest...), slots on ``axis``.
    new
        Each (lead..., count, rest...).

    Returns
    -------
    arrays
        After the exchange.
    evicted
        Each (lead..., count, rest...): what was displaced, and what was refused.
    """
    offered = new
    if plan.source is not None:
        offered = [gather_slots(entries, plan.source, axis=axis) for entries in new]
    after, evicted = exchange_slots(
        arrays, plan.slot, offered, plan.write, axis=axis, donate=donate, sources=sources
    )
    if plan.rest is not None:
        xp = namespace_of(plan.rest)
        rest = [gather_slots(entries, plan.rest, axis=axis) for entries in new]
        evicted = [xp.concat(pair, axis=axis) for pair in zip(evicted, rest, strict=True)]
    return after, evicted


def _rank_at(rank: Rank, index: Array) -> Rank:
    axis = index.ndim - 1
    return Rank(
        gather_slots(rank.primary, index, axis=axis), gather_slots(rank.order, index, axis=axis)
    )
