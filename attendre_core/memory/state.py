"""The arrays of a key-value memory: its state, and the records that it returns."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, Namespace, backend_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.policies.view import NO_QUERY
from attendre_core.tree import tree_map

__all__ = [
    "CLOSED", "Entries", "EvictedEntries", "KeyValueState", "RetrievedEntries", "closed",
    "empty_like", "empty_state", "grown",
]  # fmt: skip

#: Arrival number of a slot that its head may not use: it stays empty, and ranks above all others.
CLOSED = 2**31 - 1


class KeyValueState(NamedTuple):
    """Everything a `KeyValueMemory` remembers.

    With ``per_head=True`` the per-slot arrays are (batch, kv_heads, slots). Positions and counters
    are int32: where values may be read, position 2,147,483,647 and that many entries are refused,
    and positions before -1,073,741,824. Compiled code does not look; a state whose clock it took
    beyond the end is refused by the next call that does. With ``per_head=True`` evictions are
    counted in every head, and the two counters of them wrap that much earlier, which
    `admitted_share` alone would show.

    Attributes
    ----------
    key, value
        (batch, kv_heads, slots, dim), the layout of attention.
    position
        int32, (batch, slots): original position; -1 in an empty slot.
    valid
        Boolean, (batch, slots): the slot holds an entry.
    score
        (batch, slots): float32 (float64 for float64 keys); higher = keep.
    arrival
        int32, (batch, slots): how many entries of the row arrived before it; negative in an empty
        slot.
    pinned, observed
        Boolean, (batch, slots): never evicted; seen by some query.
    aux
        Metadata of the entries: None or nested arrays (batch, slots, ...).
    clock
        int32, (batch,): valid entries inserted so far.
    latest_query
        int32, (batch,): the latest query position so far.
    chunk_start
        int32, (batch,): the clock before the last chunk was inserted.
    evictions, refusals
        int32, (batch,): entries evicted so far, and how many of them had been refused.
    policy_state
        The policy's own state: None or nested arrays (batch, ...).
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
    policy_state: Any = None


class Entries(NamedTuple):
    """The stored entries, with keys and values as (batch, slots, kv_heads, dim)."""

    key: Array
    value: Array
    position: Array
    valid: Array
    score: Array
    arrival: Array
    pinned: Array
    aux: Any


class EvictedEntries(NamedTuple):
    """What left the memory: displaced and refused entries; only valid ones are real.

    ``key`` and ``value`` are (batch, seq, kv_heads, dim), the others (batch, seq, ...); with
    ``per_head=True`` the others are (batch, kv_heads, seq, ...). ``score`` is the entry's score
    when it was evicted, ``arrival`` how many entries of the row arrived before it.
    """

    key: Array
    value: Array
    position: Array
    valid: Array
    aux: Any
    score: Array
    arrival: Array


class RetrievedEntries(NamedTuple):
    """The top K of each query and head, best first; only valid ones are real.

    ``key`` and ``value`` are (batch, queries, heads, K, dim); ``similarity`` (the scaled logit),
    ``position``, ``valid`` and ``index`` (the slot) are (batch, queries, heads, K); the arrays of
    ``aux`` are (batch, queries, heads, K, ...).
    """

    key: Array
    value: Array
    similarity: Array
    position: Array
    valid: Array
    index: Array
    aux: Any


def empty_state(
    xp: Namespace,
    batch: int,
    heads: int,
    slots: int,
    head_dim: int,
    value_dim: int,
    dtype: Any,
    device: Any,
    per_head: bool,
    aux: Any,
) -> KeyValueState:
    """Make an empty state; ``aux`` is an example of the metadata."""
    record = (batch, heads, slots) if per_head else (batch, slots)
    score = xp.float64 if checks.dtype_name(dtype) == "float64" else xp.float32
    number = xp.arange(slots, dtype=xp.int32, device=device) - slots

    def zeros(shape: tuple[int, ...], kind: Any) -> Array:
        return xp.zeros(shape, dtype=kind, device=device)

    return KeyValueState(
        key=zeros((batch, heads, slots, head_dim), dtype),
        value=zeros((batch, heads, slots, value_dim), dtype),
        position=zeros(record, xp.int32) - 1,
        valid=zeros(record, xp.bool),
        score=zeros(record, score),
        arrival=zeros(record, xp.int32) + number,
        pinned=zeros(record, xp.bool),
        observed=zeros(record, xp.bool),
        aux=tree_map(lambda leaf: zeros((*record, *leaf.shape[2:]), leaf.dtype), aux),
        clock=zeros((batch,), xp.int32),
        latest_query=zeros((batch,), xp.int32) + NO_QUERY,
        chunk_start=zeros((batch,), xp.int32),
        evictions=zeros((batch,), xp.int32),
        refusals=zeros((batch,), xp.int32),
    )


def closed(state: KeyValueState, sizes: tuple[int, ...]) -> KeyValueState:
    """Close slots of an empty state, so that each K/V head holds only as many as its size."""
    xp = backend_of(state.key).xp
    if len(sizes) != state.key.shape[1]:
        raise ConfigError(
            f"KeyValueMemory.init: head_sizes has {len(sizes)} numbers, but there are "
            f"{state.key.shape[1]} K/V heads. Give one number for each."
        )
    number = numbers(state.key.shape[2], state.arrival)
    shut = xp.stack([(number >= size) & (number < max(sizes)) for size in sizes])
    return state._replace(arrival=ops.fill(state.arrival, shut, CLOSED))


def empty_like(state: KeyValueState, slots: int | None = None) -> KeyValueState:
    """Make an empty state of the same kind, with the same or another number of slots."""
    backend = backend_of(state.key)
    batch, heads, own_slots, head_dim = state.key.shape
    per_head = state.valid.ndim == 3
    example = tree_map(lambda leaf: leaf[:, 0, ...], state.aux) if per_head else state.aux
    return empty_state(
        backend.xp, batch, heads, own_slots if slots is None else slots, head_dim,
        state.value.shape[3], state.key.dtype, backend.device_of(state.key), per_head, example,
    )  # fmt: skip


def grown(state: KeyValueState, count: int) -> KeyValueState:
    """Append empty slots."""
    xp = backend_of(state.key).xp
    added = empty_like(state, slots=count)
    shift = numbers(count, state.arrival) - (state.key.shape[2] + count)
    added = added._replace(arrival=xp.zeros_like(added.arrival) + shift)
    axis = state.valid.ndim - 1

    def joined(name: str, at: int) -> Array:
        return xp.concat([getattr(state, name), getattr(added, name)], axis=at)

    return state._replace(
        key=joined("key", 2),
        value=joined("value", 2),
        aux=tree_map(lambda a, b: xp.concat([a, b], axis=axis), state.aux, added.aux),
        **{
            name: joined(name, axis)
            for name in ("position", "valid", "score", "arrival", "pinned", "observed")
        },
    )
