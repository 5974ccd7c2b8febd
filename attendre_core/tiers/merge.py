"""Merge what a full tier receives into the entries it holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core import ops
from attendre_core.backend import Array, namespace_of, numbers, wide
from attendre_core.memory.admission import Exchange, scored
from attendre_core.memory.arrivals import Arrivals, taken
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.state import KeyValueState
from attendre_core.policies.base import Stored
from attendre_core.tiers.compress import as_index
from attendre_core.tiers.state import Span, TiersState, cut, joined

__all__ = ["Merge", "fill_slots", "merge"]


@dataclass(frozen=True)
class Merge:
    """Once the tier is full, merge each entry into the one with the most similar key.

    Nothing is evicted from such a tier. Keys and values become means, weighted by how many entries
    each stands for; similarity is the cosine over the keys of all heads (of each head, with
    ``per_head=True``). The merged entry has the latest of the positions. All entries of a step are
    compared with what is held before any of them is merged.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.Tier(at.KeyValueMemory(64), compress=at.Merge()).compress
    Merge()
    """


def fill_slots(memory: KeyValueMemory, own: KeyValueState, new: Arrivals, params: Any) -> Exchange:
    """Pair the first entries with the empty slots; ``new`` has those that enter first."""
    new = scored(memory.policy, Stored(*own[:10], own.policy_state, params), new)
    xp, slots = namespace_of(own.key), own.valid.shape[-1]
    count = min(slots, new.valid.shape[-1])
    kept = xp.astype(own.valid, own.score.dtype)
    slot = ops.lowest(kept, own.arrival, count)
    first = taken(new, as_index(numbers(count, own.clock) + 0 * new.position[..., :count]))
    empty = slots - ops.count_true(own.valid, axis=own.valid.ndim - 1)
    write = first.enter & (numbers(count, own.clock) < empty[..., None])
    return Exchange(first, slot, write, own.clock)


def merge(state: TiersState, span: Span, new: Arrivals, exchange: Exchange) -> TiersState:
    """Merge the entries that found no empty slot into the nearest ones of a tier."""
    xp, part = namespace_of(state.key), cut(state, span.first, span.stop)
    axis, per_head = state.valid.ndim - 1, state.valid.ndim == 3
    # Entries beyond those that were paired with a slot found none.
    missing = new.enter.shape[-1] - exchange.write.shape[-1]
    unpaired = xp.zeros_like(new.enter[..., :missing])
    left = new.enter & ~joined([exchange.write, unpaired])
    alike = _cosines(new.key, part.key, per_head)
    alike = xp.where(part.valid[..., None, :], alike, -float("inf"))
    nearest = xp.argmax(alike, axis=-1)[..., None] == numbers(alike.shape[-1], alike)
    chosen = nearest & left[..., None]
    before, counts = part.aux["count"], new.aux["count"][..., None]
    amount = xp.where(chosen, counts, xp.zeros_like(counts))
    count = before + xp.sum(amount, axis=-2, dtype=before.dtype)
    at = xp.where(chosen, new.position[..., None], xp.full_like(new.position[..., None], -1))
    position = xp.maximum(part.position, xp.max(at, axis=-2))

    def mean(stored: Array, entries: Array) -> Array:
        weight, own, total = (
            xp.astype(x if per_head else x[:, None, ...], wide(stored).dtype)
            for x in (amount, before, count)
        )
        entries = ops.fill(wide(entries), ~(left if per_head else left[:, None, :])[..., None], 0.0)
        added = xp.matmul(xp.matrix_transpose(weight), entries)
        some = xp.where(total > 0, total, xp.ones_like(total))
        result = (wide(stored) * own[..., None] + added) / some[..., None]
        same = (own == total)[..., None]
        return xp.where(same, stored, xp.astype(result, stored.dtype, copy=False))

    def put(whole: Array, inside: Array, at: int = axis) -> Array:
        lead = (slice(None),) * at
        before, after = slice(0, span.first), slice(span.stop, None)
        return joined([whole[(*lead, before, ...)], inside, whole[(*lead, after, ...)]], at)

    return state._replace(
        key=put(state.key, mean(part.key, new.key), 2),
        value=put(state.value, mean(part.value, new.value), 2),
        position=put(state.position, position),
        aux={**state.aux, "count": put(state.aux["count"], count)},
    )


def _cosines(coming: Array, held: Array, per_head: bool) -> Array:
    """Compare keys (batch, kv_heads, n, dim) with others; over all heads, or each for itself."""
    xp, coming, held = namespace_of(held), wide(coming), wide(held)

    def over(x: Array) -> Array:
        return ops.over_heads(x[:, :, None, ...], per_head=per_head)

    def length(key: Array) -> Array:
        length = xp.sqrt(over(xp.sum(key * key, axis=-1, dtype=key.dtype)))
        return xp.where(length > 0, length, xp.ones_like(length))

    products = over(xp.matmul(coming, xp.matrix_transpose(held)))
    return products / length(coming)[..., None] / length(held)[..., None, :]
