"""A state with its slots in the order of their positions, and the way back."""

from __future__ import annotations

from attendre_core.backend import Array, backend_of
from attendre_core.memory.state import KeyValueState
from attendre_core.ops.branches import all_true
from attendre_core.ops.slots import gather_slots
from attendre_core.tree import tree_map

__all__ = ["sorted_by_position", "with_scores_of"]

_LAST = 2**31 - 1


def sorted_by_position(state: KeyValueState) -> tuple[KeyValueState, Array | None]:
    """Sort the slots of each row by position, empty ones last.

    Returns
    -------
    state
        With sorted slots.
    back
        Where each slot of the given state went; None if they are known to be sorted already,
        as they are until something is evicted.
    """
    xp = backend_of(state.key).xp
    place = xp.where(state.valid, state.position, xp.full_like(state.position, _LAST))
    if all_true(place[..., 1:] >= place[..., :-1]):
        return state, None
    index = xp.argsort(place, axis=-1, stable=True)
    axis = state.valid.ndim - 1

    def taken(array: Array) -> Array:
        return gather_slots(array, index, axis=axis)

    sorted_state = state._replace(
        key=gather_slots(state.key, index, axis=2),
        value=gather_slots(state.value, index, axis=2),
        position=taken(state.position),
        valid=taken(state.valid),
        score=taken(state.score),
        arrival=taken(state.arrival),
        pinned=taken(state.pinned),
        observed=taken(state.observed),
        aux=tree_map(taken, state.aux),
    )
    return sorted_state, xp.argsort(index, axis=-1, stable=True)


def with_scores_of(state: KeyValueState, sorted_state: KeyValueState, back: Array) -> KeyValueState:
    """Take over what reading changes, from a sorted state into the original order."""
    axis = state.valid.ndim - 1
    return state._replace(
        score=gather_slots(sorted_state.score, back, axis=axis),
        observed=gather_slots(sorted_state.observed, back, axis=axis),
        latest_query=sorted_state.latest_query,
    )
