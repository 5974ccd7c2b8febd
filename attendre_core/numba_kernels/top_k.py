"""Top-K attention, one query at a time, so that its logits stay in the L1 cache.

A row is read a few times to find a value that slightly more than K entries reach. Those entries are
set aside, and the rest of the work is done on them alone: the exact K-th value, ties, the softmax,
and a sum over K values instead of all.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from attendre_core.backend import Array
from attendre_core.numba_kernels.toolchain import compiled, lowest_bit

__all__ = ["FIRST", "LAST", "Number", "attend_rows", "range_of", "sortable"]

#: A float32, or an int32 where the name says so.
Number = Any

#: Larger and smaller than every order.
LAST = np.int32(2**31 - 1)
FIRST = np.int32(1 - 2**31)
_LOWEST = np.float32(np.finfo(np.float32).min)
_INFINITY = np.float32(np.inf)
_HALF = np.float32(0.5)
#: -infinity as a sortable integer.
_BOTTOM = np.int32(-0x7F800001)
_WORD = 64
#: Tries to find a value that K to 2 K entries reach, before settling for one that more reach.
_TRIES = 24
#: More halvings than it takes to get from the range of all floats to two adjacent ones.
_HALVINGS = 400


@compiled(reorder=True)
def _moments(x: Array) -> tuple[Number, Number]:
    """Return the sum of the numbers, and the sum of their squares."""
    total = np.float32(0)
    squares = np.float32(0)
    for i in range(x.size):
        total += x[i]
        squares += x[i] * x[i]
    return total, squares


@compiled()
def _all_finite(x: Array) -> bool:
    """Return whether all numbers are finite."""
    return bool(np.isfinite(x).all())


@compiled()
def sortable(bits: Number) -> Number:
    """Map the bits of a float to an integer of the same order, and back."""
    return np.int32(bits ^ ((bits >> np.int32(31)) & LAST))


@compiled()
def range_of(x: Array, spare: Array) -> tuple[Number, Number]:
    """Return the lowest number above -infinity and the highest of all.

    Compared as integers, because the maximum of floats is not vectorised.
    """
    bits = x.view(np.int32)
    low, high = LAST, FIRST
    for i in range(bits.size):
        here = sortable(bits[i])
        high = max(high, here)
        low = min(low, here if here > _BOTTOM else LAST)
    spare[0] = sortable(low)
    spare[1] = sortable(high)
    ends = spare[:2].view(np.float32)
    return ends[0], ends[1]


@compiled()
def _count(x: Array, bound: Number) -> Number:
    """Count the numbers that are at least ``bound``."""
    count = np.int32(0)
    for i in range(x.size):
        count += np.int32(x[i] >= bound)
    return count


@compiled()
def _places(x: Array, bound: Number, place: Array) -> int:
    """Write the indices of the numbers that reach a bound to ``place``; return how many."""
    count = 0
    whole = x.size // _WORD * _WORD
    for start in range(0, whole, _WORD):
        word = np.uint64(0)
        for i in range(_WORD):
            word |= np.uint64(x[start + i] >= bound) << np.uint64(i)
        while word:
            place[count] = start + lowest_bit(word)
            word &= word - np.uint64(1)
            count += 1
    for i in range(whole, x.size):
        if x[i] >= bound:
            place[count] = i
            count += 1
    return count


@compiled()
def _lower_bound(x: Array, k: int, guess: Number, step: Number) -> Number:
    """Find a value that at least K numbers reach, and not many more if possible."""
    low, high = _LOWEST, _INFINITY
    bound = max(guess, low)
    for _ in range(_TRIES):
        count = _count(x, bound)
        if count < k:
            high = bound
        elif count > 2 * k:
            low = bound
        else:
            return bound
        if low == _LOWEST:
            bound = max(high - step, low)
        elif high == _INFINITY:
            bound = low + step
        else:
            bound = low * _HALF + high * _HALF
        step = step * np.float32(2)
        if bound <= low or bound >= high:
            break
    return low


@compiled()
def _kth(x: Array, k: int, low: Number, spare: Array) -> Number:
    """Find a value that exactly K numbers reach, or the K-th value itself if it is tied.

    All numbers must be at least ``low``.
    """
    high = range_of(x, spare)[1]
    if _count(x, high) >= k:
        return high
    for _ in range(_HALVINGS):
        middle = low * _HALF + high * _HALF
        if middle <= low or middle >= high:
            break
        count = _count(x, middle)
        if count < k:
            high = middle
        else:
            low = middle
            if count == k:
                break
    return low


@compiled()
def _set_aside(x: Array, bound: Number, near: Array, place: Array) -> int:
    """Copy the numbers that reach a bound, and their indices; return how many."""
    count = _places(x, bound, place)
    for i in range(count):
        near[i] = x[place[i]]
    return count


@compiled()
def _halved(
    x: Array, k: int, passes: int, near: Array, place: Array, spare: Array
) -> tuple[Number, int]:
    """Halve the range a fixed number of times; at most K numbers reach its upper end.

    Once few numbers are left above the lower end, they are set aside in ``near``. Returns the
    upper end, and how many numbers are set aside.
    """
    low, high = range_of(x, spare)
    aside = 0
    for _ in range(passes):
        middle = low + (high - low) * _HALF
        count = _count(x, middle)
        if count <= k:
            high = middle
        else:
            low = middle
            if aside == 0 and count <= 2 * k:
                aside = _set_aside(x, low, near, place)
                x = near[:aside]
    if aside == 0:
        aside = _set_aside(x, high, near, place)
    return high, aside


@compiled()
def _keep(near: Array, place: Array, bound: Number) -> int:
    """Move the numbers that reach a bound to the front; return how many there are."""
    kept = 0
    for i in range(near.size):
        here = near[i]
        near[kept] = here
        place[kept] = place[i]
        kept += here >= bound
    return kept


@compiled()
def _newest(
    near: Array, place: Array, bound: Number, order: Array, surplus: int, spare: Array
) -> Number:
    """Return the lowest order that is kept when the oldest ``surplus`` ties are dropped."""
    tied = 0
    for i in range(near.size):
        if near[i] == bound:
            spare[tied] = order[place[i]]
            tied += 1
    return np.sort(spare[:tied])[surplus]


@compiled(reorder=True)
def _exponentials(x: Array, whole: Array, top: Number) -> Number:
    """Replace x by exp(x - top), for x at most top, and return their sum.

    exp(y) is 2**n exp(r) with an integer n and |r| below log(2) / 2. The series of exp(r) up to
    the seventh power is exact to the last bit but one.
    """
    total = np.float32(0)
    for i in range(x.size):
        y = max(x[i] - top, np.float32(-87))
        n = np.floor(y * np.float32(1.4426950408889634) + _HALF)
        r = y - n * np.float32(0.693359375)
        r = r + n * np.float32(2.12194440e-4)
        p = np.float32(1 / 5040)
        p = p * r + np.float32(1 / 720)
        p = p * r + np.float32(1 / 120)
        p = p * r + np.float32(1 / 24)
        p = p * r + np.float32(1 / 6)
        p = p * r + _HALF
        p = p * r + np.float32(1)
        x[i] = p * r + np.float32(1)
        whole[i] = (np.int32(n) + np.int32(127)) << np.int32(23)
    power = whole.view(np.float32)
    for i in range(x.size):
        x[i] *= power[i]
        total += x[i]
    return total


@compiled(reorder=True)
def _mix(weight: Array, place: Array, value: Array, total: Number, out: Array) -> None:
    """Sum the values at some indices by their weights, four at a time, and divide by the total."""
    count = weight.size
    whole = count // 4 * 4
    for d in range(out.size):
        out[d] = 0
    for i in range(0, whole, 4):
        a, b, c, e = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
        v, w = value[place[i]], value[place[i + 1]]
        x, y = value[place[i + 2]], value[place[i + 3]]
        for d in range(out.size):
            out[d] += (a * v[d] + b * w[d]) + (c * x[d] + e * y[d])
    for i in range(whole, count):
        a, v = weight[i], value[place[i]]
        for d in range(out.size):
            out[d] += a * v[d]
    share = np.float32(1) / total
    for d in range(out.size):
        out[d] *= share


@compiled()
def attend_rows(
    logits: Array,
    value: Array,
    rows_per_value: int,
    masked: bool,
    allowed: Array,
    allowed_row: Array,
    order: Array,
    order_row: Array,
    k: int,
    passes: int,
    quantile: Number,
    output: Array,
    threshold: Array,
    oldest: Array,
    first: int,
    last: int,
) -> int:
    """Attend in rows ``first`` up to ``last``; return how many have a non-finite logit.

    The output of such rows is NaN, and nothing is selected.

    Parameters
    ----------
    logits
        float32, (rows, slots).
    value
        float32, (heads, slots, dim): row i attends to the values at i // ``rows_per_value``.
    masked
        Whether to apply ``allowed``, (masks, slots); row i has the mask ``allowed_row[i]``.
    order
        int32, (orders, slots), distinct within a row; row i has the order ``order_row[i]``.
    passes
        0 = exactly K; else as in `attendre_core.ops.approximate_top_k`.
    quantile
        The quantile of the normal distribution that somewhat more than K entries should reach.
    output, threshold, oldest
        Written to: (rows, dim), and (rows,) as in `attendre_core.ops.top_k_threshold`.
    """
    slots = logits.shape[1]
    scratch = np.empty(slots, np.float32)
    weight = np.empty(slots, np.float32)
    whole = np.empty(slots, np.int32)
    place = np.empty(slots, np.int32)
    broken = 0
    for row in range(first, last):
        x = logits[row]
        count = slots
        flags = allowed[allowed_row[row]]
        if masked:
            count = 0
            for i in range(slots):
                count += flags[i]
                scratch[i] = x[i] if flags[i] else np.float32(0)
            x = scratch
        total, squares = _moments(x)
        small = np.isfinite(squares)
        if not small and not _all_finite(x):
            output[row] = np.nan
            threshold[row] = _INFINITY
            oldest[row] = LAST
            broken += 1
            continue
        if masked:
            for i in range(slots):
                scratch[i] = scratch[i] if flags[i] else -_INFINITY
        threshold[row] = -_INFINITY
        oldest[row] = FIRST
        if count == 0:
            output[row] = 0
            continue
        if count <= k:
            chosen = _set_aside(x, _LOWEST, weight, place)
        elif passes > 0:
            bound, near = _halved(x, k, passes, weight, place, whole)
            chosen = _keep(weight[:near], place, bound)
            threshold[row] = bound
        else:
            if small:
                mean = total / np.float32(count)
                spread = np.float32(sqrt(max(squares / np.float32(count) - mean * mean, 0)))
                guess = mean + np.float32(quantile) * spread
            else:
                low, high = range_of(x, whole)
                spread = high * _HALF - low * _HALF
                guess = high * _HALF + low * _HALF
            bound = _lower_bound(x, k, guess, spread * np.float32(0.125))
            near = _set_aside(x, bound, weight, place)
            bound = _kth(weight[:near], k, bound, whole)
            chosen = _keep(weight[:near], place, bound)
            if chosen > k:  # ties at the K-th value: drop the oldest
                age = order[order_row[row]]
                oldest[row] = _newest(weight[:chosen], place, bound, age, chosen - k, whole)
                for i in range(chosen):
                    if weight[i] == bound and age[place[i]] < oldest[row]:
                        weight[i] = -_INFINITY
                chosen = _keep(weight[:chosen], place, bound)
            threshold[row] = bound
        top = range_of(weight[:chosen], whole)[1]
        total = _exponentials(weight[:chosen], whole[:chosen], top)
        _mix(weight[:chosen], place[:chosen], value[row // rows_per_value], total, output[row])
    return broken
