"""The score of new entries, and which of them displace stored ones."""

from __future__ import annotations

from math import sqrt

import numpy as np

from attendre_core.backend import Array
from attendre_core.numba_kernels.toolchain import compiled
from attendre_core.numba_kernels.top_k import LAST, Number, range_of, sortable

__all__ = ["admit_rows", "start_rows"]

#: Larger scores are left to the plain body.
_LARGE = np.float32(1e37)
_BITS = 66


@compiled(reorder=True)
def _start(x: Array, low: Number, high: Number, sigmas: Number, near: Number) -> Number:
    """Return mean - sigmas * deviation, or the lowest stored score within ``near`` of it.

    Measured from the highest score, so that equal scores have a deviation of exactly zero.
    """
    total = 0.0
    for i in range(x.size):
        total += np.float64(x[i] - high)
    mean = total / x.size
    start = high + np.float32(mean)
    if sigmas != 0:
        squares = 0.0
        for i in range(x.size):
            off = np.float64(x[i] - high) - mean
            squares += off * off
        start = high + np.float32(mean - sigmas * sqrt(squares / x.size))
    same = np.float32(np.inf)
    for i in range(x.size):
        if abs(x[i] - start) <= near and x[i] < same:
            same = x[i]
    return same if same < np.inf else start


@compiled()
def _bound(keys: Array, count: int) -> Number:
    """Return an integer that exactly ``count`` of these distinct integers do not exceed."""
    low, high = keys[0], keys[0]
    for i in range(keys.size):
        low, high = min(low, keys[i]), max(high, keys[i])
    low -= 1
    for _ in range(_BITS):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)  # the sum may not fit
        found = 0
        for i in range(keys.size):
            found += keys[i] <= middle
        if found == count:
            return middle
        if found < count:
            low = middle
        else:
            high = middle
    return high


@compiled()
def start_rows(score: Array, sigmas: Number, ranges: tuple[Number, Number], start: Array) -> bool:
    """Write the initial score of each row to ``start``; False if a score is too large.

    Parameters
    ----------
    score
        float32, (rows, slots).
    sigmas, ranges
        How many deviations below the mean; and, as shares of the range of the scores and of the
        largest of them, how close a result is set equal to a score.
    """
    spare = np.empty(2, np.int32)
    for row in range(score.shape[0]):
        low, high = range_of(score[row], spare)
        if not (abs(low) < _LARGE and abs(high) < _LARGE):
            return False
        near = ranges[0] * (high - low) + ranges[1] * max(high, -low)
        start[row] = _start(score[row], low, high, sigmas, np.float32(near))
    return True


@compiled()
def _sort_keys(primary: Array, order: Array, keys: Array) -> None:
    """Write integers that sort first by ``primary``, then by ``order``."""
    bits = (primary + np.float32(0)).view(np.int32)  # -0.0 becomes 0.0
    for i in range(keys.size):
        keys[i] = (np.int64(sortable(bits[i])) << 32) + (np.int64(order[i]) + np.int64(LAST))


@compiled()
def admit_rows(
    primary: Array,
    order: Array,
    new_primary: Array,
    new_order: Array,
    slot: Array,
    write: Array,
) -> None:
    """Pair the lowest slots with the best new entries.

    Parameters
    ----------
    primary, order
        float32 and int32, (rows, slots).
    new_primary, new_order
        The same for the new entries, (rows, count), at most as many as slots.
    slot, write
        Written to: int64 and boolean, (rows, count).
    """
    slots, count = primary.shape[1], new_primary.shape[1]
    keys, theirs = np.empty(slots, np.int64), np.empty(count, np.int64)
    place = np.empty(slots, np.int64)
    for row in range(primary.shape[0]):
        _sort_keys(primary[row], order[row], keys)
        _sort_keys(new_primary[row], new_order[row], theirs)
        bound = _bound(keys, count)
        chosen = 0
        for i in range(slots):
            if keys[i] <= bound:
                place[chosen] = i
                chosen += 1
        ranked = place[:chosen][np.argsort(keys[place[:chosen]])]
        best = np.argsort(-theirs)
        for i in range(count):
            here = ranked[i]
            entry = best[i]
            slot[row, entry] = here
            write[row, entry] = theirs[entry] > keys[here] and new_primary[row, entry] > -np.inf
