"""The arrays of tiers: one set of slots for all of them, one tier after the other.

::

    slots   | first memory (and a visible chunk) | waiting | second memory | waiting | third ...

So a softmax over all tiers is attention over one set of slots. ``waiting`` are entries that are too
few to be compressed yet; queries attend to them as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.backend import Array, namespace_of
from attendre_core.memory.arrivals import RECORDS
from attendre_core.memory.state import KeyValueState
from attendre_core.tree import tree_map

if TYPE_CHECKING:
    from attendre_core.tiers.spec import TiersSpec

__all__ = ["Span", "TierState", "TiersState", "cut", "joined", "spans", "tier_state"]


class TierState(NamedTuple):
    """What a tier behind the first remembers besides its slots; as in `KeyValueState`."""

    clock: Array
    chunk_start: Array
    evictions: Array
    refusals: Array
    policy_state: Any = None


class TiersState(NamedTuple):
    """Everything that `Tiers` remember.

    The fields are those of `KeyValueState`, with the slots of all tiers one after the other;
    ``clock`` and the fields after it are those of the first tier. ``tiers`` has one `TierState` for
    each of the others.
    """

    key: Array
    value: Array
    position: Array
    valid: Array
    score: Array
    arrival: Array
    pinned: Array
    observed: Array
    aux: Any
    clock: Array
    latest_query: Array
    chunk_start: Array
    evictions: Array
    refusals: Array
    policy_state: Any
    tiers: tuple[TierState, ...]

    @property
    def whole(self) -> KeyValueState:
        """The slots of all tiers as one state, with the clock of the first."""
        return KeyValueState._make(self[:15])


class Span(NamedTuple):
    """Where a tier is: waiting entries from ``start``, its memory from ``first`` to ``stop``."""

    start: int
    first: int
    stop: int


def spans(memory: TiersSpec, slots: int) -> tuple[Span, ...]:
    """Return where each tier is in a state with this many slots."""
    stop = slots - sum(tier.waiting + tier.memory.size for tier in memory.rest)
    found = [Span(0, 0, stop)]
    for tier in memory.rest:
        start, first = stop, stop + tier.waiting
        stop = first + tier.memory.size
        found.append(Span(start, first, stop))
    return tuple(found)


def cut(state: TiersState, start: int, stop: int) -> KeyValueState:
    """Return some of the slots as a state, with the clock of the first tier."""
    axis, whole = state.valid.ndim - 1, state.whole
    if (start, stop) == (0, state.valid.shape[axis]):
        return whole
    here = (*(slice(None),) * axis, slice(start, stop), ...)
    return whole._replace(
        key=state.key[:, :, start:stop, :],
        value=state.value[:, :, start:stop, :],
        aux=tree_map(lambda leaf: leaf[here], state.aux),
        **{name: getattr(state, name)[here] for name in RECORDS},
    )


def tier_state(state: TiersState, number: int, span: Span) -> KeyValueState:
    """Return the state of one tier's memory."""
    part = cut(state, span.first, span.stop)
    return part if number == 0 else part._replace(**state.tiers[number - 1]._asdict())


def joined(parts: list[Array], axis: int = -1) -> Array:
    """Concatenate the slots of several tiers."""
    return parts[0] if len(parts) == 1 else namespace_of(parts[0]).concat(parts, axis=axis)
