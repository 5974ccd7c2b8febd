"""Ops of `attendre_core.ops` in JAX's own words, where these are faster.

Each returns what the generic op returns, the same indices on ties included.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array

__all__ = ["branch", "exchange_slots", "gather_slots", "kth_largest", "lowest"]


def branch(needed: Array, compute: Callable[[], Array], otherwise: Callable[[], Array]) -> Array:
    """Compute one of two alternatives, decided when the program runs."""
    return lax.cond(needed, compute, otherwise)


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


def _lead_index(index: Array, lead: tuple[int, ...]) -> tuple[Array, ...]:
    """Return index arrays that pick whole entries: one for each leading axis, and the slots."""
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    axes = tuple(
        jnp.arange(n).reshape((1,) * i + (n,) + (1,) * (len(lead) - i)) for i, n in enumerate(lead)
    )
    return (*axes, index)


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take whole entries by index."""
    where = _lead_index(index, array.shape[:axis])
    return array.at[where].get(mode="promise_in_bounds")


def exchange_slots(
    array: Array, index: Array, new: Array, write: Array, *, axis: int, donate: bool
) -> tuple[Array, Array]:
    """Write whole entries by index; under jit with donated arguments XLA does it in place."""
    where = _lead_index(index, array.shape[:axis])
    displaced = array.at[where].get(mode="promise_in_bounds")
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
    values = jnp.where(written, new, displaced)
    after = array.at[where].set(values, unique_indices=True, mode="promise_in_bounds")
    return after, displaced
