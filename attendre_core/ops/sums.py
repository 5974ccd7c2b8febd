"""Running sums in which no amount is ever too small to count."""

from __future__ import annotations

import math

from attendre_core.backend import Array, namespace_of, op

__all__ = ["add_up", "levelled"]

#: A prime, and a factor whose multiples fill the range evenly for every usual chunk length.
_PRIME, _FACTOR = 32749, 3483
#: Scores are levelled once the lowest is this many times the largest amount.
_FAR = 2.0**12


@op
def add_up(total: Array, amounts: Array, *counters: Array) -> Array:
    """Add amounts to running totals, rounded up or down so that nothing is lost on average.

    A float32 total of 2**24 plus 1 is 2**24 again: rounded to nearest, a running sum freezes. Here
    an inexact sum is rounded up in as many steps as the lost part is a share of the distance to
    the next number. Exact sums stay exact, and equal totals with equal amounts stay equal.

    Parameters
    ----------
    total, amounts
        Real floating, (batch, ...), of one shape.
    *counters
        int32, (batch,): numbers that differ from step to step. They decide which way a row rounds
        in this step.

    Examples
    --------
    >>> import numpy as np
    >>> total, one = np.full((1, 1), 2.0**24, np.float32), np.ones((1, 1), np.float32)
    >>> for step in range(1000):
    ...     total = add_up(total, one, np.asarray([step], np.int32))
    >>> bool(abs(total[0, 0] - 2.0**24 - 1000) <= 4), bool(np.float32(2.0**24) + 1 > 2.0**24)
    (True, False)
    """
    xp = namespace_of(total, amounts)
    number = sum(counter % _PRIME for counter in counters) * _FACTOR % _PRIME
    share = (xp.astype(number, total.dtype) + 0.5) / _PRIME
    share = xp.reshape(share, share.shape + (1,) * (total.ndim - 1))
    nearest = total + amounts
    added = nearest - total
    lost = (total - (nearest - added)) + (amounts - added)
    size = xp.abs(nearest)
    # The distance to the next number: size * 0.625 eps is 0.625 to 1.25 times that.
    step = (size + size * (0.625 * float(xp.finfo(total.dtype).eps))) - size
    none = xp.zeros_like(step)
    below = xp.where(lost < 0, step, none)
    return (nearest - below) + xp.where(lost + below > share * step, step, none)


@op
def levelled(score: Array, amounts: Array, counted: Array) -> Array:
    """Subtract the lowest counted score of a row from all once it dwarfs the amounts of a step.

    The differences between the lowest scores, where the next evictions are decided, are then as
    exact late in a stream as at its beginning.

    Parameters
    ----------
    score, amounts
        Real floating, (..., n): scores so far, and what is to be added to them.
    counted
        Boolean, (..., n): the scores that compete.

    Examples
    --------
    >>> import numpy as np
    >>> score, counted = np.asarray([9e6, 9e6 + 4, 0.0]), np.asarray([True, True, False])
    >>> levelled(score, np.asarray([1.0, 0.5, 0.0]), counted).tolist()
    [0.0, 4.0, -9000000.0]
    """
    xp = namespace_of(score, amounts, counted)
    most = xp.max(xp.abs(amounts), axis=-1, keepdims=True)
    low = xp.min(xp.where(counted, score, math.inf), axis=-1, keepdims=True)
    far = (xp.abs(low) > _FAR * most) & (most > 0) & (low < math.inf)
    return score - xp.where(far, low, xp.zeros_like(low))
