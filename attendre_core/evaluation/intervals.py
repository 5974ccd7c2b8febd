"""How sure a share of right answers is, and a difference between two of them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from attendre_core.errors import ConfigError

__all__ = ["Interval", "difference", "share"]

_Z = 1.959963984540054


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference is not just noise."""
        return self.low > 0 or self.high < 0


def share(right: Any) -> Interval:
    """Return the share of right answers with Wilson's interval, honest at 0 and 1 as well.

    Parameters
    ----------
    right
        Boolean, (documents,).

    Examples
    --------
    >>> [round(x, 3) for x in share(np.ones(20, dtype=bool))]
    [1.0, 0.839, 1.0]
    """
    right = _checked("share", right)
    n, p = right.size, float(right.mean())
    middle = p + _Z**2 / (2 * n)
    spread = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    # The bounds enclose the share itself; at 0 and 1 only rounding says otherwise.
    return Interval(p, min((middle - spread) / scale, p), max((middle + spread) / scale, p))


def difference(right: Any, other: Any, *, draws: int = 2000, seed: int = 0) -> Interval:
    """Return how much larger the first share is, with a paired bootstrap interval.

    Both must be measured on the same documents: documents are drawn again, with both of their
    results, so that what makes a document hard for both does not count.

    Parameters
    ----------
    right, other
        Boolean, (documents,).
    draws, seed
        Of the bootstrap.

    Examples
    --------
    >>> difference([True, True, True, False], [True, False, False, False]).value
    0.5
    """
    first, second = _checked("difference", right), _checked("difference", other)
    if first.size != second.size:
        raise ConfigError(
            f"difference: {first.size} results against {second.size}, expected results on the same "
            "documents."
        )
    gap = first.astype(np.float64) - second
    rng = np.random.default_rng(seed)
    means = gap[rng.integers(0, gap.size, (draws, gap.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(gap.mean()), float(low), float(high))


def _checked(where: str, right: Any) -> Any:
    found = np.asarray(right, dtype=bool)
    if found.ndim != 1 or not found.size:
        raise ConfigError(
            f"{where}: results have shape {found.shape}, expected (documents,) with at least one."
        )
    return found
