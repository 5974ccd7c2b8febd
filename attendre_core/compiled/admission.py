"""Let new entries compete with a full memory: their score, the slots they meet, who wins."""

from __future__ import annotations

from math import sqrt

import numpy as np

from attendre_core.backend import Array
from attendre_core.compiled.toolchain import compiled
from attendre_core.compiled.top_k import LAST, Number, range_of, sortable

__all__ = ["admit_rows"]

#: Scores beyond it are left to the generic code, which bounds them.
_LARGE = np.float32(1e37)
_BITS = 66


@compiled(reorder=True)
def _start(x: Array, low: Number, high: Number, sigmas: Number, near: Number) -> Number:
    """Return mean - sigmas * deviation, or a stored score that is nearer to it than ``near``.

    Measured from the highest score, so that equal scores have exactly no deviation.
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
    """Return an integer that exactly ``count`` of these different ones do not exceed."""
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
def admit_rows(
    score: Array,
    arrival: Array,
    come: Array,
    sigmas: Number,
    ranges: tuple[Number, Number],
    start: Array,
    slot: Array,
    write: Array,
) -> bool:
    """Pair each new entry with a slot; the newest meets the lowest. False if a score is too large.

    Parameters
    ----------
    score, arrival
        float32 and int32, (rows, slots): of entries that all are real, and none pinned.
    come
        int32, (rows, count): arrival of the new entries, ascending; not more than there are slots.
    sigmas, ranges
        Of the initial score: how many deviations below the mean, and which part of the range of
        scores, and of the largest of them, counts as no difference.
    start, slot, write
        Written to: float32, (rows,); int64 and boolean, (rows, count).
    """
    slots, count = score.shape[1], come.shape[1]
    keys, spare = np.empty(slots, np.int64), np.empty(slots, np.int32)
    place = np.empty(slots, np.int64)
    for row in range(score.shape[0]):
        x, age = score[row], arrival[row]
        low, high = range_of(x, spare)
        if not (abs(low) < _LARGE and abs(high) < _LARGE):
            return False
        near = ranges[0] * (high - low) + ranges[1] * max(high, -low)
        start[row] = _start(x, low, high, sigmas, np.float32(near))
        bits = (x + np.float32(0)).view(np.int32)  # -0.0 becomes 0.0
        for i in range(slots):
            keys[i] = (np.int64(sortable(bits[i])) << 32) + (np.int64(age[i]) + np.int64(LAST))
        bound = _bound(keys, count)
        chosen = 0
        for i in range(slots):
            if keys[i] <= bound:
                place[chosen] = i
                chosen += 1
        ranked = place[:chosen][np.argsort(keys[place[:chosen]])]
        for i in range(count):
            here = ranked[count - 1 - i]
            slot[row, i] = here
            write[row, i] = start[row] > x[here] or (
                start[row] == x[here] and come[row, i] > age[here]
            )
    return True
