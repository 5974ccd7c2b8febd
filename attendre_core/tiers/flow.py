"""What the first tier evicts flows on: compressed or not, into the next tier, and so on.

::

    exchange of the first tier ─► evicted, in order of arrival ─► compress ─► exchange of the second
                                                                                │
    all slots are written at the end  ◄──── evicted by the last tier ──┘
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendre_core import checks, ops
from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.memory.admission import Exchange, compete, counted, displaced
from attendre_core.memory.arrivals import RECORDS, Arrivals, cleared, padded, taken
from attendre_core.memory.state import EvictedEntries, KeyValueState
from attendre_core.tiers.compress import Compressor, as_index
from attendre_core.tiers.merge import Merge, fill_slots, merge
from attendre_core.tiers.state import Span, TiersState, TierState, cut, spans, tier_state
from attendre_core.tree import tree_leaves, tree_of

if TYPE_CHECKING:
    from attendre_core.tiers.spec import Tier, TiersParameters, TiersSpec

__all__ = ["flow_on"]

#: Larger than every arrival number.
_LAST = 2**31 - 1


def flow_on(
    memory: TiersSpec,
    state: TiersState,
    exchange: Exchange,
    params: TiersParameters,
    *,
    donate: bool,
    hand: bool = True,
) -> tuple[TiersState, EvictedEntries | None]:
    """Carry out an exchange of the first tier, and let what it evicts flow on.

    Returns
    -------
    state, evicted
        ``evicted`` is what the last tier evicts; None unless ``hand`` is True.
    """
    where, whole = spans(memory, state.key.shape[2]), state.whole
    writes, tiers, merging = [exchange], [], []
    own, new = whole, exchange.new
    gone: Any = _displaced(whole, exchange)
    for number, tier in enumerate(memory.rest, start=1):
        tiers.append(_advanced(own, new, _evictions(own, gone)))
        span, own = where[number], tier_state(state, number, where[number])
        new = gone if tier.compress is None else _in_order(gone)
        if isinstance(tier.compress, Compressor):
            new, waiting = _compressed(tier.compress, state, span, new, params.compress[number - 1])
            writes.append(waiting)
        new = _entering(tier, own, new)
        merges = isinstance(tier.compress, Merge)
        if merges:
            exchange = fill_slots(tier.memory, own, new, params.policies[number])
            merging.append((span, new, exchange))
        else:
            exchange = compete(tier.memory, own, new, params.policies[number])
        exchange = exchange._replace(slot=exchange.slot + span.first)
        writes.append(exchange)
        if merges:
            gone = new._replace(valid=new.valid & ~new.enter, clock=own.clock)
        elif hand or number < len(memory.rest):
            gone = _displaced(whole, exchange)
        else:
            gone = None
    counts = _evictions(own, gone) if gone else counted(own, whole, exchange)
    tiers.append(_advanced(own, new, counts))
    after = _written(state, writes, donate)
    first, *rest = tiers
    rest += state.tiers[len(rest) :]  # that of a tier outside
    after = after._replace(**first._asdict(), tiers=tuple(rest))
    for span, new, exchange in merging:
        after = merge(after, span, new, exchange)
    return after, _handed(gone) if hand and gone else None


def _displaced(whole: KeyValueState, exchange: Exchange) -> Arrivals:
    """Return what an exchange displaces as arrivals; those that are not finite may not enter.

    Their clock is the arrival number from which on they were refused.
    """
    xp, names = namespace_of(whole.key), ("position", "valid", "score", "arrival")
    (key, value), records, aux = displaced(whole, exchange, names)
    enter, axis = exchange.write | exchange.new.enter, exchange.slot.ndim - 1
    if exchange.refused is not None:
        enter = xp.concat([enter, exchange.refused.enter], axis=axis)
    own: dict[str, Any] = dict(zip(names, records, strict=True))
    none = xp.zeros_like(own["valid"])
    return Arrivals(
        key, value, **own, pinned=none, observed=none, enter=own["valid"] & enter, aux=aux,
        count=exchange.since, clock=exchange.since, scored=False, full=False,
    )  # fmt: skip


def _in_order(gone: Arrivals) -> Arrivals:
    """Sort entries: those that are valid first, in order of arrival."""
    return taken(gone, _order(gone))


def _order(gone: Arrivals) -> Array:
    """Return the entries as an index: those that are valid first, in order of arrival."""
    count = gone.valid.shape[-1]
    last = _LAST - numbers(count, gone.valid)
    order = namespace_of(last).where(gone.valid, gone.arrival, last)
    return ops.lowest(None, order, count)


def _handed(gone: Arrivals) -> EvictedEntries:
    """Return entries as they are handed to the caller."""
    xp = namespace_of(gone.key)
    key, value = (xp.permute_dims(x, (0, 2, 1, 3)) for x in gone[:2])
    return EvictedEntries(key, value, gone.position, gone.valid, gone.aux, gone.score, gone.arrival)


def _compressed(
    compress: Compressor, state: TiersState, span: Span, new: Arrivals, params: Any
) -> tuple[Arrivals, Exchange]:
    """Compress as many entries as are ready, and let the others wait."""
    axis, room = new.valid.ndim - 1, span.first - span.start
    waiting = _waiting(state, span, new)
    every = padded(waiting, new)
    count = every.valid.shape[-1]
    number = numbers(count, every.valid)
    order = ops.lowest(None, namespace_of(number).where(every.valid, number, _LAST - number), count)
    every = taken(every, order)
    held = ops.count_true(every.valid, axis=axis)
    ready = held // compress.block * compress.block
    whole = count // compress.block * compress.block
    index = as_index(number[:whole] + 0 * every.position[..., :whole])
    result = compress.compress(taken(every, index), ready, params)
    place = ready[..., None] + numbers(room, ready)
    last = namespace_of(place).minimum(place, namespace_of(place).full_like(place, count - 1))
    rest = taken(every, as_index(last))._replace(valid=place < held[..., None])
    slot = as_index(numbers(room, ready) + span.start + 0 * place)
    rest = cleared(rest, slot, state.key.shape[2])
    return result, Exchange(rest, slot, slot == slot, state.clock)


def _waiting(state: TiersState, span: Span, like: Arrivals) -> Arrivals:
    """Return the entries that wait to be compressed."""
    part = cut(state, span.start, span.first)
    return like._replace(
        key=part.key,
        value=part.value,
        enter=part.valid,
        aux=part.aux,
        **{name: getattr(part, name) for name in RECORDS},
    )


def _entering(tier: Tier, own: KeyValueState, new: Arrivals) -> Arrivals:
    """Give entries numbers as arrivals of a tier; those that are not finite may not enter it."""
    xp, axis, enter = namespace_of(own.key), new.valid.ndim - 1, new.enter
    if isinstance(tier.compress, Compressor):
        keep = (0, 1, 2) if axis == 2 else (0, 2)
        finite = ops.finite_entries(new.key, keep, ops.LARGEST)
        enter = enter & finite & ops.finite_entries(new.value, keep, ops.LARGEST)
    clock = xp.reshape(own.clock, (-1,) + (1,) * axis)
    empty = -1 - numbers(new.valid.shape[-1], own.clock)
    place = xp.astype(xp.argsort(_order(new), axis=-1), xp.int32)
    pins = new.pinned | (checks.in_spans(new.position, tier.memory.pin) & enter)

    def count_of(flags: Array) -> Array:
        count = ops.count_true(flags, axis=axis)
        return xp.max(count, axis=1) if axis == 2 else count

    return new._replace(
        enter=enter,
        arrival=xp.where(new.valid, clock + place, empty),
        pinned=pins,
        count=count_of(enter),
        clock=own.clock + count_of(new.valid),
    )


def _evictions(own: KeyValueState, gone: Arrivals) -> tuple[Array, Array]:
    """Return the evictions and refusals of a tier after some entries left it."""
    axis = gone.valid.ndim - 1
    since = namespace_of(gone.clock).reshape(gone.clock, (-1,) + (1,) * axis)
    refused, axes = gone.valid & (gone.arrival >= since), tuple(range(1, axis + 1))
    evictions, refusals = (ops.count_true(x, axis=axes) for x in (gone.valid, refused))
    return own.evictions + evictions, own.refusals + refusals


def _advanced(own: KeyValueState, new: Arrivals, counts: tuple[Array, Array]) -> TierState:
    """Return the clock and the counts of a tier after new entries arrived."""
    start = namespace_of(own.clock).where(new.count > 0, own.clock, own.chunk_start)
    return TierState(new.clock, start, *counts, own.policy_state)


def _written(state: TiersState, writes: list[Exchange], donate: bool) -> TiersState:
    """Write the entries of all tiers; nothing of the state is read after the first is written."""
    axis = state.valid.ndim - 1
    wide, records = [state.key, state.value], [*state[2:8], *tree_leaves(state.aux)]
    for new, slot, write, *_ in writes:
        wide = ops.write_slots(wide, slot, (new.key, new.value), write, axis=2, donate=donate)
        own = (*new[2:8], *tree_leaves(new.aux))
        records = ops.write_slots(records, slot, own, write, axis=axis, donate=donate)
        donate = True  # what was written is ours
    return state._replace(
        key=wide[0],
        value=wide[1],
        **dict(zip(RECORDS, records, strict=False)),
        aux=tree_of(state.aux, records[len(RECORDS) :]),
    )
