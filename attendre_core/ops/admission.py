"""Admission: the score of new entries, and which of them displace stored ones."""

from __future__ import annotations

import math

from attendre_core.backend import Array, namespace_of, op
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import lowest
from attendre_core.ops.slots import gather_slots

__all__ = ["admit", "mean_less_deviations"]

#: An initial score this close to a stored one is set equal to it, relative to the range of the
#: stored scores and to the largest of them. Otherwise rounding would decide ties: with two stored
#: scores mu - sigma *is* the smaller one, and with equal ones sigma is zero.
SNAP_RANGES = (2.0**-18, 2.0**-21)


@op
def mean_less_deviations(score: Array, counted: Array, deviations: float) -> Array:
    """Return mean - deviations * standard deviation of the counted scores of each row.

    A result within rounding error of a counted score is set to that score, so that all libraries
    see the same tie.

    Parameters
    ----------
    score
        Real floating, (..., n).
    counted
        Boolean, (..., n).

    Returns
    -------
    array
        (...); 0 where nothing is counted.

    Examples
    --------
    >>> import numpy as np
    >>> score, yes = np.asarray([[1.0, 3.0, 9.0]]), np.asarray([[True, True, False]])
    >>> [mean_less_deviations(score, yes, c).tolist() for c in (1.0, 0.0)]
    [[1.0], [2.0]]
    """
    xp = namespace_of(score, counted)
    number = count_true(counted, axis=-1, keepdims=True)
    some = number > 0
    number = xp.astype(xp.where(some, number, xp.ones_like(number)), score.dtype)

    def among(x: Array) -> Array:
        return xp.where(counted, x, xp.zeros_like(x))

    def total(x: Array) -> Array:
        return xp.sum(x, axis=-1, keepdims=True, dtype=x.dtype)

    highest = xp.max(xp.where(counted | ~some, score, -math.inf), axis=-1, keepdims=True)
    lowest = xp.min(xp.where(counted | ~some, score, math.inf), axis=-1, keepdims=True)
    # Measured from the highest score, so that equal scores have a deviation of exactly zero.
    below = among(score - highest)
    mean = total(below) / number
    start = highest + mean
    if deviations:
        sigma = xp.sqrt(total(among((below - mean) ** 2)) / number)
        start = highest + (mean - deviations * sigma)
    of_range, of_largest = SNAP_RANGES
    near = of_range * (highest - lowest) + of_largest * xp.maximum(highest, -lowest)
    close = (xp.abs(score - start) <= near) & counted
    same = xp.min(xp.where(close, score, math.inf), axis=-1, keepdims=True)
    start = xp.where(same < math.inf, same, start)
    return xp.where(some, start, xp.zeros_like(start))[..., 0]


@op
def admit(
    primary: Array, order: Array, new_primary: Array, new_order: Array
) -> tuple[Array, Array]:
    """Pair the lowest slots with the best new entries and admit those that rank higher.

    Entries compare by ``primary``, then by ``order``; a new entry whose primary is -inf is never
    admitted.

    Parameters
    ----------
    primary, order
        (..., slots), of the stored entries; orders are distinct within a row.
    new_primary, new_order
        (..., count), of the new entries; count is at most slots.

    Returns
    -------
    slot
        Integer, (..., count): the slot that each new entry is paired with.
    write
        Boolean, (..., count): whether the new entry takes that slot.

    Examples
    --------
    >>> import numpy as np
    >>> stored = np.asarray([[7.0, 3.0, 9.0]]), np.asarray([[0, 1, 2]])
    >>> slot, write = admit(*stored, np.asarray([[2.0, 8.0]]), np.asarray([[3, 4]]))
    >>> slot.tolist(), write.tolist()
    ([[0, 1]], [[False, True]])
    """
    xp = namespace_of(primary, order, new_primary, new_order)
    count, axis = new_order.shape[-1], order.ndim - 1

    def take(x: Array, index: Array) -> Array:
        return gather_slots(x, index, axis=axis)

    worst = lowest(primary, order, count)
    best = xp.flip(lowest(new_primary, new_order, count), axis=-1)
    # From best first back to the order in which they were passed.
    slot = take(worst, xp.argsort(best, axis=-1, stable=True))
    held, since = take(primary, slot), take(order, slot)
    higher = (new_primary > held) | ((new_primary == held) & (new_order > since))
    return slot, higher & (new_primary > -math.inf)
