"""Confidence intervals of means, of shares of right answers, and of paired differences."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError

__all__ = ["ENOUGH", "Interval", "difference", "mean", "share"]

_Z = 1.959963984540054
_DRAWS = 2000
#: With fewer items, a bootstrap interval is too narrow to be emphasised.
ENOUGH = 20


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0, so that a difference is unlikely chance."""
        return self.low > 0 or self.high < 0


def share(right: Any) -> Interval:
    """Return the share of right answers with Wilson's interval, which is sound at 0 and 1 too.

    Parameters
    ----------
    right
        Boolean, (items,).

    Examples
    --------
    >>> [round(x, 3) for x in share(np.ones(20, dtype=bool))]
    [1.0, 0.839, 1.0]
    """
    flags = _checked("share", right)
    n, p = flags.size, float(flags.mean())
    middle = p + _Z**2 / (2 * n)
    spread = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    # The interval contains the share; at 0 and 1, rounding errors could put it just outside.
    return Interval(p, min((middle - spread) / scale, p), max((middle + spread) / scale, p))


def mean(values: Any, *, draws: int = _DRAWS, seed: int = 0) -> Interval:
    """Return a mean with its bootstrap interval.

    Parameters
    ----------
    values
        (items,).
    draws, seed
        Number of resamples, and their seed.

    Examples
    --------
    >>> [round(x, 2) for x in mean([1.0, 2.0, 3.0, 4.0])]
    [2.5, 1.5, 3.5]
    """
    numbers = _checked("mean", values)
    rng = np.random.default_rng(seed)
    means = numbers[rng.integers(0, numbers.size, (draws, numbers.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(numbers.mean()), float(low), float(high))


def difference(values: Any, others: Any, *, draws: int = _DRAWS, seed: int = 0) -> Interval:
    """Return how much larger the first mean is, with a paired bootstrap interval.

    Both must be measured on the same items, in the same order. Each resample draws items with
    both of their results, so the difficulty that an item has for both cancels out.

    Parameters
    ----------
    values, others
        (items,), boolean or floating.
    draws, seed
        Number of resamples, and their seed.

    Examples
    --------
    >>> difference([True, True, True, False], [True, False, False, False]).value
    0.5
    """
    first, second = _checked("difference", values), _checked("difference", others)
    if first.size != second.size:
        raise ConfigError(
            f"difference: {first.size} results against {second.size}, expected results on the same "
            "items."
        )
    return mean(first - second, draws=draws, seed=seed)


def _checked(where: str, values: Any) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64)
    if numbers.ndim != 1 or not numbers.size:
        raise ConfigError(
            f"{where}: results have shape {numbers.shape}, expected (items,) with at least one."
        )
    return numbers
