"""Selection by rank, with ties broken by an explicit order, the same on every library.

Each library's own top-k breaks ties differently, so it is used for a decision only if its keys are
unique.
"""

from __future__ import annotations

from math import ceil, log2

from attendre_core.backend import Array, namespace_of, numbers, op
from attendre_core.ops.counting import count_true

__all__ = [
    "among_top_k",
    "approximate_threshold",
    "approximate_top_k",
    "bounded",
    "kth_largest",
    "lowest",
    "select_top_k",
    "top_k",
    "top_k_threshold",
]

_INFINITY = float("inf")
#: Larger than every order.
_LAST = 2**31 - 1


@op
def bounded(x: Array, bound: float) -> Array:
    """Clip numbers to [-bound, bound]; NaN becomes -bound.

    Examples
    --------
    >>> import numpy as np
    >>> bounded(np.asarray([1.0, np.inf, np.nan]), 9.0).tolist()
    [1.0, 9.0, -9.0]
    """
    xp = namespace_of(x)
    below = xp.where(x <= bound, x, bound)
    return xp.where(x >= -bound, below, -bound)


@op
def lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Rank along the last axis and return the indices of the lowest, lowest first.

    Parameters
    ----------
    primary
        Real floating, (..., n), without NaN; None ranks by ``order`` alone.
    order
        int32, (..., n), distinct within a row: decides where ``primary`` is equal.
    count
        How many; at most n.

    Returns
    -------
    array
        Integer indices, (..., count).

    Examples
    --------
    >>> import numpy as np
    >>> score, age = np.asarray([2.0, 1.0, 1.0, 3.0]), np.asarray([0, 5, 4, 1], dtype=np.int32)
    >>> lowest(score, age, 3).tolist()
    [2, 1, 0]
    """
    xp = namespace_of(primary, order)
    by_order = xp.argsort(order, axis=-1, stable=True)
    if primary is None:
        return by_order[..., :count]
    ranked = xp.take_along_axis(primary, by_order, axis=-1)
    by_primary = xp.argsort(ranked, axis=-1, stable=True)
    return xp.take_along_axis(by_order, by_primary[..., :count], axis=-1)


def top_k(x: Array, k: int, order: Array | None = None) -> tuple[Array, Array]:
    """Stable top-k: the k largest along the last axis, largest first.

    Parameters
    ----------
    x
        Real floating, (..., n), without NaN.
    k
        How many; at most n.
    order
        int32, (..., n), distinct within a row: of equal values the one with the *higher* order
        comes first. By default the lower index comes first.

    Returns
    -------
    values, indices
        Each (..., k).

    Examples
    --------
    >>> import numpy as np
    >>> top_k(np.asarray([1.0, 2.0, 2.0, 0.0]), 2)[1].tolist()
    [1, 2]
    """
    xp = namespace_of(x, order)
    if order is None:
        tie = xp.broadcast_to(numbers(x.shape[-1], x), x.shape)
    else:
        tie = xp.broadcast_to(-order, x.shape)
    indices = lowest(-x, tie, k)
    return xp.take_along_axis(x, indices, axis=-1), indices


@op
def kth_largest(x: Array, k: int) -> Array:
    """Return the k-th largest value along the last axis, as (..., 1).

    Examples
    --------
    >>> import numpy as np
    >>> kth_largest(np.asarray([1.0, 3.0, 2.0]), 2).tolist()
    [2.0]
    """
    xp = namespace_of(x)
    place = x.shape[-1] - k
    return xp.sort(x, axis=-1)[..., place : place + 1]


def select_top_k(logits: Array, allowed: Array, k: int, order: Array) -> Array:
    """Mark the k largest allowed entries of each row, exactly, without gathering anything.

    The k-th value is the threshold; if more entries are equal to it than fit, those with the
    higher order are chosen, as in `top_k`.

    Parameters
    ----------
    logits
        Real floating, (..., n).
    allowed
        Boolean, broadcastable to ``logits``.
    order
        int32, broadcastable to ``logits``, distinct within a row.

    Returns
    -------
    array
        Boolean, shaped as ``logits``: True for min(k, number allowed) entries per row.

    Examples
    --------
    >>> import numpy as np
    >>> x, yes = np.asarray([[1.0, 2.0, 2.0, 9.0]]), np.asarray([[True, True, True, False]])
    >>> select_top_k(x, yes, 1, np.asarray([[0, 1, 2, 3]], dtype=np.int32)).tolist()
    [[False, False, True, False]]
    """
    xp = namespace_of(logits, allowed, order)
    if k >= logits.shape[-1]:
        return xp.broadcast_to(allowed, logits.shape)
    masked = xp.where(allowed, logits, -_INFINITY)
    return among_top_k(masked, *top_k_threshold(masked, k, order), order) & allowed


@op
def among_top_k(logits: Array, threshold: Array, oldest: Array, order: Array) -> Array:
    """Mark what is above the threshold, or equal and not too old; see `top_k_threshold`."""
    return (logits > threshold) | ((logits == threshold) & (order >= oldest))


@op
def top_k_threshold(masked: Array, k: int, order: Array) -> tuple[Array, Array]:
    """Return the threshold of the k largest entries of each row, and the tie-break at it.

    Parameters
    ----------
    masked
        Real floating, (..., n); -inf for what may not be chosen.
    order
        int32, broadcastable to ``masked``, distinct within a row.

    Returns
    -------
    threshold
        (..., 1): larger entries are among the k largest.
    oldest
        int32, (..., 1): so are entries equal to the threshold with at least this order.

    Examples
    --------
    >>> import numpy as np
    >>> x, order = np.asarray([[1.0, 2.0, 2.0]]), np.asarray([[0, 1, 2]], dtype=np.int32)
    >>> [number.item() for number in top_k_threshold(x, 1, order)]
    [2.0, 2]
    """
    xp = namespace_of(masked)
    threshold = kth_largest(masked, k)
    tied = masked == threshold
    wanted = k - count_true(masked > threshold, axis=-1, keepdims=True)
    recency = _recency(order)
    fits = tied & (recency < _tie_cut(tied, wanted, recency))
    return threshold, xp.min(xp.where(fits, order, _LAST), axis=-1, keepdims=True)


def _recency(order: Array) -> Array:
    """Return the rank of each entry in its row by descending order, from 0."""
    xp = namespace_of(order)
    newest_first = xp.argsort(-order, axis=-1, stable=True)
    return xp.astype(xp.argsort(newest_first, axis=-1, stable=True), xp.int32)


def _tie_cut(tied: Array, wanted: Array, recency: Array) -> Array:
    """Find by bisection how many of the most recent entries contain the wanted number of ties."""
    xp = namespace_of(tied)
    low = xp.zeros_like(wanted)
    high = xp.full_like(wanted, tied.shape[-1])
    for _ in range(ceil(log2(tied.shape[-1] + 1))):
        middle = (low + high) // 2
        count = count_true(tied & (recency < middle), axis=-1, keepdims=True)
        enough = count >= wanted
        high = xp.where(enough, middle, high)
        low = xp.where(enough, low, middle + 1)
    return high


def approximate_top_k(logits: Array, allowed: Array, k: int, passes: int) -> Array:
    """Mark at most k of the largest allowed entries of each row, cheaply.

    A threshold is found by a fixed number of bisection steps between the smallest and the
    largest allowed value. Everything marked belongs to the exact top k, so the recall of a row
    is the number marked divided by min(k, number allowed). After p passes, an entry can only be
    missed if it is within 2**-p of the row's range above the k-th value. If more than k entries
    share the highest value, all of them are marked.

    Examples
    --------
    >>> import numpy as np
    >>> x, yes = np.asarray([[1.0, 2.0, 4.0, 8.0]]), np.ones((1, 4), dtype=bool)
    >>> approximate_top_k(x, yes, 2, 12).tolist()
    [[False, False, True, True]]
    """
    xp = namespace_of(logits, allowed)
    if k >= logits.shape[-1]:
        return xp.broadcast_to(allowed, logits.shape)
    return allowed & (logits >= approximate_threshold(logits, allowed, k, passes))


@op
def approximate_threshold(logits: Array, allowed: Array, k: int, passes: int) -> Array:
    """Return the threshold of `approximate_top_k`, (..., 1)."""
    xp = namespace_of(logits, allowed)
    masked = xp.where(allowed, logits, -_INFINITY)
    some = xp.any(allowed, axis=-1, keepdims=True)
    low = xp.min(xp.where(allowed, logits, _INFINITY), axis=-1, keepdims=True)
    low = xp.where(some, low, xp.zeros_like(low))
    high = xp.max(masked, axis=-1, keepdims=True)
    high = xp.where(some, high, xp.zeros_like(high))
    few = count_true(masked >= low, axis=-1, keepdims=True) <= k
    # ``high`` only moves to values that at most k entries reach.
    for _ in range(passes):
        middle = low + (high - low) * 0.5
        enough = count_true(masked >= middle, axis=-1, keepdims=True) <= k
        high = xp.where(enough & ~few, middle, high)
        low = xp.where(enough | few, low, middle)
    return xp.where(few, low, high)
