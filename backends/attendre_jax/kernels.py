"""Kernels of ops in JAX's own functions, where these are faster.

Each returns the same as the plain body of the op, the same indices for ties included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array

__all__ = ["gather_slots", "kth_largest", "lowest", "take_rows", "write_slots"]


@partial(jax.jit, static_argnames="count")  # or every eager call would compile its loops again
def lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Sort by two keys at once; if only a few are wanted, select them first."""
    index = lax.broadcasted_iota(jnp.int32, order.shape, order.ndim - 1)
    if primary is None:
        return lax.sort((order, index), num_keys=1)[1][..., :count]
    order = jnp.broadcast_to(order, primary.shape)
    if primary.dtype == jnp.float32 and 4 * count <= primary.shape[-1]:
        return _lowest_by_counting(primary, order, count)
    index = lax.broadcasted_iota(jnp.int32, primary.shape, primary.ndim - 1)
    return lax.sort((primary, order, index), num_keys=2)[2][..., :count]


def _lowest_by_counting(primary: Array, order: Array, count: int) -> Array:
    """Find the lowest entries by counting, and sort only those."""
    bits = _ordered_bits(primary)
    wanted = jnp.full((*bits.shape[:-1], 1), count, dtype=jnp.int32)
    bound = _kth_smallest(bits, wanted)
    below, tied = bits < bound, bits == bound
    wanted = wanted - jnp.sum(below, axis=-1, keepdims=True, dtype=jnp.int32)
    last = _kth_smallest(jnp.where(tied, order, jnp.iinfo(jnp.int32).max), wanted)
    chosen = below | (tied & (order <= last))
    place = jnp.where(chosen, jnp.cumsum(chosen, axis=-1, dtype=jnp.int32) - 1, count)
    index = lax.broadcasted_iota(jnp.int32, bits.shape, bits.ndim - 1)

    def put(where: Array, numbers: Array) -> Array:
        return jnp.zeros(count, dtype=jnp.int32).at[where].set(numbers, mode="drop")

    for _ in bits.shape[:-1]:
        put = jax.vmap(put)
    selected = put(place, index)
    keys = [jnp.take_along_axis(x, selected, axis=-1) for x in (bits, order)]
    return lax.sort((*keys, selected), num_keys=2)[2]


def _ordered_bits(x: Array) -> Array:
    """Map floats to integers of the same order; -0.0 becomes 0.0."""
    bits = lax.bitcast_convert_type(x + 0.0, jnp.int32)
    return jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _kth_smallest(x: Array, k: Array) -> Array:
    """Find the k-th smallest of int32 numbers, (..., 1), by bisection; ``k`` is (..., 1)."""

    def unsettled(carry: tuple[Array, Array]) -> Any:
        return jnp.any(carry[0] < carry[1])

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = carry
        middle = (low & high) + ((low ^ high) >> 1)  # rounded down, and cannot overflow
        enough = jnp.sum(x <= middle, axis=-1, keepdims=True, dtype=jnp.int32) >= k
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    low = jnp.min(x, axis=-1, keepdims=True)
    high = jnp.max(x, axis=-1, keepdims=True)
    return lax.while_loop(unsettled, halve, (low, high))[0]


@partial(jax.jit, static_argnames="k")
def kth_largest(x: Array, k: int) -> Array:
    """Find the k-th largest value, (..., 1), by bisection on the bits of the numbers.

    The bits are mapped to integers of the same order. Their range in each row is halved until a
    threshold with exactly k entries at or above it is found, or the k-th value itself. Counting is
    much cheaper than sorting.
    """
    if x.dtype != jnp.float32:
        return jnp.sort(x, axis=-1, descending=True)[..., k - 1 : k]
    bits = _ordered_bits(x)

    def count(threshold: Array) -> Array:
        return jnp.sum(bits >= threshold, axis=-1, keepdims=True, dtype=jnp.int32)

    def unsettled(carry: tuple[Array, Array]) -> Any:
        low, high = carry
        return jnp.any(low < high)

    def halve(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = carry
        # The largest t with at least k entries >= t lies in [low, high]; overflow-safe middle.
        middle = (low | high) - ((low ^ high) >> 1)
        number = count(middle)
        enough = number >= k
        low = jnp.where(enough, middle, low)
        high = jnp.where(enough, high, middle - 1)
        return low, jnp.where(number == k, low, high)

    low = jnp.min(bits, axis=-1, keepdims=True)
    high = jnp.max(bits, axis=-1, keepdims=True)
    low, _ = lax.while_loop(unsettled, halve, (low, high))
    # The smallest entry at or above the threshold is the k-th largest.
    return jnp.min(jnp.where(bits >= low, x, jnp.inf), axis=-1, keepdims=True)


def take_rows(table: Array, index: Array) -> Array:
    """Take rows by an index of any shape, without flattening it."""
    return jnp.take(table, index, axis=0)


def _over_lead(
    function: Callable[..., Array], lead: int, shared: int, more: int = 0
) -> Callable[..., Array]:
    """Map a function of one array's slots and an index over the leading axes.

    Mapped axes, unlike index arrays that name every row and head, let XLA see that no row or head
    reads from another: on a mesh, nothing is gathered.

    Parameters
    ----------
    lead, shared
        Leading axes of the array, and how many of them the index has too.
    more
        Further arguments, with all leading axes.
    """
    for axis in reversed(range(lead)):
        function = jax.vmap(function, in_axes=(0, 0 if axis < shared else None, *[0] * more))
    return function


def _shared(index: Array, array: Array) -> Array:
    """Give an index the leading axes of an array where its own are of length one."""
    lead = array.shape[: index.ndim - 1]
    return index if index.shape[:-1] == lead else jnp.broadcast_to(index, (*lead, index.shape[-1]))


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take whole entries by index."""

    def take(slots: Array, where: Array) -> Array:
        return slots.at[where].get(mode="promise_in_bounds")

    slots = array.shape[axis]
    if index.shape[-1] != 1 or slots == 1:
        return _over_lead(take, axis, index.ndim - 1)(array, _shared(index, array))
    return lax.slice_in_dim(_with_the_next(array, index, axis), 0, 1, axis=axis)


def _with_the_next(array: Array, index: Array, axis: int) -> Array:
    """Take a single slot and the one after it.

    XLA copies all slots to read and write a single one in place, but not for two that it reads
    before it writes.
    """
    both = jnp.concatenate([index, (index + 1) % array.shape[axis]], axis=-1)
    return lax.optimization_barrier(gather_slots(array, both, axis=axis))


def write_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool = False,
) -> list[Array]:
    """Write whole entries by index; under jit with donated arguments XLA does it in place."""

    def put(slots: Array, where: Array, entries: Array) -> Array:
        return slots.at[where].set(entries, unique_indices=True, mode="promise_in_bounds")

    scatter = _over_lead(put, axis, index.ndim - 1, more=1)
    index, write = _shared(index, arrays[0]), _shared(write, arrays[0])
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    slots = arrays[0].shape[axis]
    single = index.shape[-1] == 1 < slots
    if single:
        # XLA copies all slots to replace a single one, but not to replace two that it has read
        # before: the next slot is rewritten with its own entry.
        index = jnp.concatenate([index, (index + 1) % slots], axis=-1)
    after = []
    for array, entries in zip(arrays, new, strict=True):
        held = gather_slots(array, index, axis=axis)
        displaced = held
        if single:
            held = lax.optimization_barrier(held)
            displaced = lax.slice_in_dim(held, 0, 1, axis=axis)
        written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
        values = jnp.where(written, entries, displaced)
        if single:
            rest = lax.slice_in_dim(held, 1, 2, axis=axis)
            values = jnp.concatenate([values, rest], axis=axis)
        after.append(scatter(array, index, values))
    return after
