"""Ops of `attendre_core.ops` in JAX's own words, where these are faster.

Each returns what the generic op returns, the same indices on ties included.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array

__all__ = [
    "branch",
    "choose",
    "exchange_slots",
    "gather_slots",
    "kth_largest",
    "lowest",
    "take_rows",
]


def branch(needed: Array, compute: Callable[[], Array], otherwise: Callable[[], Array]) -> Array:
    """Compute one of two alternatives, decided when the program runs."""
    return lax.cond(needed, compute, otherwise)


def choose(which: Array, branches: Sequence[Callable[[], Array]]) -> Array:
    """Compute one of several alternatives, decided when the program runs."""
    return lax.switch(which, list(branches))


def lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Sort by two keys at once and keep the first."""
    index = lax.broadcasted_iota(jnp.int32, order.shape, order.ndim - 1)
    if primary is None:
        return lax.sort((order, index), num_keys=1)[1][..., :count]
    order = jnp.broadcast_to(order, primary.shape)
    index = lax.broadcasted_iota(jnp.int32, primary.shape, primary.ndim - 1)
    return lax.sort((primary, order, index), num_keys=2)[2][..., :count]


def kth_largest(x: Array, k: int) -> Array:
    """Find the k-th largest value, (..., 1), by bisection on the bits of the numbers.

    Float bits, mapped so that their order is that of the numbers, are halved between the lowest
    and the highest of a row until a threshold with exactly k entries at or above it is found,
    or the k-th value itself. Counting is far cheaper than sorting, on CPU and TPU alike.
    """
    if x.dtype != jnp.float32:
        return jnp.sort(x, axis=-1, descending=True)[..., k - 1 : k]
    bits = lax.bitcast_convert_type(x + 0.0, jnp.int32)  # -0.0 becomes 0.0
    bits = jnp.where(bits < 0, bits ^ 0x7FFFFFFF, bits)

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
    """Take rows by an index of any shape, whose axes stay apart."""
    return jnp.take(table, index, axis=0)


def _over_lead(
    function: Callable[..., Array], lead: int, shared: int, more: int = 0
) -> Callable[..., Array]:
    """Map a function of one array's slots, and an index, over the leading axes.

    Explicit axes of a batch, unlike index arrays that name every row and head, let XLA see that
    no row or head reads from another: on a mesh nothing is gathered.

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


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take whole entries by index."""

    def take(slots: Array, where: Array) -> Array:
        return slots.at[where].get(mode="promise_in_bounds")

    return _over_lead(take, axis, index.ndim - 1)(array, index)


def exchange_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool,
) -> tuple[list[Array], list[Array]]:
    """Write whole entries by index; under jit with donated arguments XLA does it in place."""

    def put(slots: Array, where: Array, entries: Array) -> Array:
        return slots.at[where].set(entries, unique_indices=True, mode="promise_in_bounds")

    scatter = _over_lead(put, axis, index.ndim - 1, more=1)
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    after, back = [], []
    for array, entries in zip(arrays, new, strict=True):
        displaced = gather_slots(array, index, axis=axis)
        written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
        after.append(scatter(array, index, jnp.where(written, entries, displaced)))
        back.append(jnp.where(written, displaced, entries))
    return after, back
