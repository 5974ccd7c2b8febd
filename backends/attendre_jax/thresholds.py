"""Find a threshold that K entries of a row exceed, by counting, in few passes.

::

    a row, sorted      . . . . . . lo . . . K-th | . . hi . .
    counted above                  K + 3         K     2

Each pass counts the entries above two thresholds and keeps the third of the range that contains the
K-th entry. The first two thresholds are guessed from the mean and standard deviation of part of the
row, which for typical logits leaves few entries between them; a bad guess only takes more passes.
If a row has slightly more than K entries above its threshold, the surplus is removed, smallest
first.
"""

from __future__ import annotations

from functools import partial
from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array
from attendre_core.ops import selection

__all__ = ["top_k_threshold"]

#: Half the distance between the first two thresholds, in standard deviations.
_MARGIN = 0.18
#: A surplus of at most this many entries is removed one by one instead of counting again.
_PEELED = 3
#: If this many passes are not enough, some row has ties at its K-th entry or an unusual range.
_MOST_PASSES = 16
#: Bytes of logits that stay in a CPU's cache between passes.
_BLOCK = 2**21


class _Range(NamedTuple):
    """Ranges of the thresholds of rows, each (..., 1); ``above_low`` counts entries above low."""

    passes: Array
    low: Array
    high: Array
    above_low: Array


@partial(jax.jit, static_argnames="k")  # or every eager call would compile its loops again
def top_k_threshold(masked: Array, k: int, order: Array) -> tuple[Array, Array]:
    """Find threshold and oldest order, some queries at a time.

    A CPU then keeps in its cache what every pass reads. The axes of rows and heads, which may be
    sharded over devices, are not split.
    """
    axis = masked.ndim - 2
    block = _queries_at_a_time(masked)
    if block == 0:
        return _of_block(masked, k, order)
    queries = masked.shape[axis]
    shared = order.ndim <= max(axis, 0) or order.shape[axis - masked.ndim] == 1

    def one(i: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        def cut(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, i * block, block, x.ndim - 2)

        new = _of_block(cut(masked), k, order if shared else cut(order))
        put = partial(lax.dynamic_update_slice_in_dim, start_index=i * block, axis=axis)
        return put(found[0], new[0]), put(found[1], new[1])

    shape = (*masked.shape[:-1], 1)
    start = jnp.zeros(shape, masked.dtype), jnp.zeros(shape, jnp.int32)
    found: tuple[Array, Array] = lax.fori_loop(0, queries // block, one, start)
    return found


def _queries_at_a_time(x: Array) -> int:
    """Return for how many queries the logits fit into a CPU's cache; 0 = do not split.

    Accelerators take all queries at once, and an exported program may have symbolic lengths.
    """
    if x.ndim < 2 or jax.default_backend() != "cpu" or not all(isinstance(n, int) for n in x.shape):
        return 0
    queries = x.shape[-2]
    block = max(1, _BLOCK // max(1, x.size // max(queries, 1) * x.dtype.itemsize))
    if block >= queries:
        return 0
    while queries % block:
        block -= 1
    return int(block)


def _of_block(x: Array, k: int, order: Array) -> tuple[Array, Array]:
    """Find thresholds by counting; if some row is not settled, or has ties, by rank."""
    low = _threshold(x, k=k)
    number = _sum(jnp.where(x > low, 1.0, 0.0).astype(x.dtype))
    sure = jnp.all((number == k) | (jnp.isneginf(low) & (number < k)))
    none = jnp.full_like(low, jnp.iinfo(jnp.int32).max, jnp.int32)

    def exact() -> tuple[Array, Array]:
        # Made to depend on this block's result, or XLA would hoist it out of the branch.
        row, orders, _ = lax.optimization_barrier((x, order, low))
        return _by_rank(row, k, orders)

    found: tuple[Array, Array] = lax.cond(sure, lambda: (low, none), exact)
    return found


def _by_rank(row: Array, k: int, order: Array) -> tuple[Array, Array]:
    """Return the K-th value; break ties only if more than K entries reach it."""
    threshold = selection.kth_largest(row, k)
    surplus = jnp.any(jnp.sum(row >= threshold, axis=-1, dtype=jnp.int32) > k)
    all_fit = jnp.full_like(threshold, -jnp.iinfo(jnp.int32).max, jnp.int32)

    def broken() -> tuple[Array, Array]:
        plain: tuple[Array, Array] = selection.top_k_threshold.plain(row, k, order)  # type: ignore[attr-defined]
        return plain

    found: tuple[Array, Array] = lax.cond(surplus, broken, lambda: (threshold, all_fit))
    return found


def _threshold(x: Array, *, k: int) -> Array:
    """Return a threshold for each row, (..., 1), with k entries above it unless there are ties."""
    mean, spread = _guess(x)
    at = NormalDist().inv_cdf(1 - k / x.shape[-1])
    first = (mean + (at - _MARGIN) * spread, mean + (at + _MARGIN) * spread)
    infinity = jnp.full_like(mean, jnp.inf)

    def unsettled(found: _Range) -> Array:
        wide = (found.above_low > k + _PEELED) & (found.low < found.high)
        return jnp.any(wide) & (found.passes < _MOST_PASSES)

    def narrow(found: _Range) -> _Range:
        passes, low, high, above_low = found
        lower, upper = _next_two(low, high, spread * jnp.exp2(passes.astype(x.dtype)))
        lower = jnp.where(passes == 0, first[0], lower)
        upper = jnp.where(passes == 0, first[1], upper)
        above_lower, above_upper = _count_above(x, lower, upper)
        enough, more = above_lower >= k, above_upper >= k
        return _Range(
            passes + 1,
            jnp.where(more, upper, jnp.where(enough, lower, low)),
            jnp.where(more, high, jnp.where(enough, upper, lower)),
            jnp.where(more, above_upper, jnp.where(enough, above_lower, above_low)),
        )

    everything = _Range(jnp.int32(0), -infinity, infinity, infinity)
    _, low, _, above = lax.while_loop(unsettled, narrow, everything)

    def surplus(carry: tuple[Array, Array]) -> Array:
        _, above = carry
        return jnp.any((above > k) & (above <= k + _PEELED))

    def peel(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        low, above = carry
        smallest = jnp.min(jnp.where(x > low, x, jnp.inf), axis=-1, keepdims=True)
        peeled = (above > k) & (above <= k + _PEELED)
        return jnp.where(peeled, smallest, low), jnp.where(peeled, above - 1, above)

    return lax.while_loop(surplus, peel, (low, above))[0]


def _guess(x: Array) -> tuple[Array, Array]:
    """Return mean and standard deviation of the first quarter of each row."""
    part = x[..., : max(x.shape[-1] // 4, 1)]
    real = ~jnp.isneginf(part)
    held = jnp.where(real, part, 0.0)
    number = jnp.maximum(_sum(jnp.where(real, 1.0, 0.0).astype(x.dtype)), 1.0)
    mean = _sum(held) / number
    return mean, jnp.sqrt(jnp.maximum(_sum(held * held) / number - mean * mean, 0.0))


def _next_two(low: Array, high: Array, step: Array) -> tuple[Array, Array]:
    """Divide a range into thirds; search a half-open range in growing steps."""
    third = (high - low) / 3.0
    down, up = jnp.isneginf(low), jnp.isposinf(high)
    lower = jnp.where(down, high - 2.0 * step, jnp.where(up, low + 0.5 * step, low + third))
    upper = jnp.where(down, high - 0.5 * step, jnp.where(up, low + 2.0 * step, high - third))
    return lower, upper


def _count_above(x: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Count the entries above two thresholds, as floats, if possible in the digits of one sum."""
    base = 2.0 ** x.shape[-1].bit_length()
    if x.shape[-1] * (base + 1.0) >= 2.0 ** (jnp.finfo(x.dtype).nmant + 1):
        return tuple(_sum(jnp.where(x > t, 1.0, 0.0).astype(x.dtype)) for t in (lower, upper))
    digits = jnp.where(x > upper, base + 1.0, jnp.where(x > lower, 1.0, 0.0))
    total = _sum(digits.astype(x.dtype))
    above_upper = jnp.floor(total / base)
    return total - above_upper * base, above_upper


def _sum(x: Array) -> Array:
    return jnp.sum(x, axis=-1, keepdims=True)
