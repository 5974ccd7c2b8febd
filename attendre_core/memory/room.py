"""``present="visible"``: earlier chunks make room for the new one, which competes later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendre_core import ops
from attendre_core.backend import namespace_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.memory.admission import Exchange, ranked, scored
from attendre_core.memory.arrivals import Arrivals, cleared, nothing, padded
from attendre_core.memory.state import KeyValueState
from attendre_core.policies.base import Stored

if TYPE_CHECKING:
    from attendre_core.memory.spec import KeyValueSpec

__all__ = ["clear_room", "make_room"]


def make_room(
    memory: KeyValueSpec, state: KeyValueState, new: Arrivals, params: Any = None
) -> Exchange:
    """Cut the earlier chunks down to the memory's size and let in the whole new chunk.

    An entry that is not finite is refused. The number of evicted entries is fixed, so the best of
    those that would have been evicted stays instead, until the next insertion; nothing is lost,
    and at most size + chunk entries are held.
    """
    slots = state.key.shape[2]
    room, count = slots - memory.size, new.valid.shape[-1]
    if count > room:
        raise ConfigError(
            f"KeyValueMemory.insert: the chunk has {count} entries, but this state was made for "
            f"chunks of at most {room}. Make it with init(..., chunk={count}), or insert the "
            "chunk in parts."
        )
    if count < room:
        new = padded(new, nothing(state, room - count))
    xp = namespace_of(state.key)
    stored = Stored(*state[:10], state.policy_state, params)
    lowest = ops.lowest(*ranked(memory, stored, state.clock), room)
    # Entries that may not enter are paired with the best of these slots.
    broken = ~new.enter if new.full else new.valid & ~new.enter
    before = ops.running_count(broken)
    place = xp.where(broken, room, numbers(room, before)) - before
    slot = ops.gather_slots(lowest, xp.astype(place, lowest.dtype), axis=lowest.ndim - 1)
    some = xp.reshape(new.count > 0, new.count.shape + (1,) * (slot.ndim - 1))
    write = new.enter if new.full else some & ~broken
    (survives,) = ops.write_slots(
        [state.valid], slot, [xp.zeros_like(write)], write, axis=slot.ndim - 1
    )
    new = scored(memory.policy, stored._replace(valid=survives), new)
    return Exchange(cleared(new, slot, slots), slot, write, state.chunk_start)


def clear_room(memory: KeyValueSpec, state: KeyValueState, params: Any = None) -> Exchange:
    """Replace all entries beyond the memory's size by padding."""
    slots = state.key.shape[2]
    stored = Stored(*state[:10], state.policy_state, params)
    slot = ops.lowest(*ranked(memory, stored, state.clock), slots - memory.size)
    empty = cleared(nothing(state, slot.shape[-1]), slot, slots)
    return Exchange(empty, slot, slot == slot, state.chunk_start)
