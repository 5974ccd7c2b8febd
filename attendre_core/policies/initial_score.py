"""The score with which a new entry enters (paper, section 3.1).

A new entry has not been attended to yet. Too high a score drives out important old entries, too
low a score refuses everything new: then the memory is *frozen* (`FrozenMemoryWarning`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.ops.counting import count_true

if TYPE_CHECKING:
    from attendre_core.policies.base import Stored

__all__ = ["AnyInitial", "ConstantScore", "InitialScore", "QuantileScore", "QuotaScore"]

#: An initial score this close to a stored one counts as equal to it, relative to the range of
#: the stored scores and to the largest of them. Rounding then cannot decide a tie: with two
#: stored scores mu - sigma *is* the smaller one, and with equal ones sigma is zero.
SNAP_RANGES = (2.0**-18, 2.0**-21)


@dataclass(frozen=True)
class InitialScore:
    """mu - sigmas * sigma of the stored scores, per example; 0 while nothing is stored.

    Parameters
    ----------
    sigmas
        The paper's c: 1 by default, 2 for LRA-last and 1.5 for LRA-max and LRA-sum on PaLM 2.
        May be 0 or negative. The higher it is, the fewer new entries get in.

    Notes
    -----
    sigma is the population standard deviation. Pinned entries do not count, because a newcomer
    does not compete with them (the paper does not say). A result within rounding of a stored
    score becomes that score, so that all libraries see the same tie.

    Examples
    --------
    >>> InitialScore(sigmas=0.0)
    InitialScore(sigmas=0.0)
    """

    sigmas: float = 1.0

    def __post_init__(self) -> None:
        _finite("InitialScore", "sigmas", self.sigmas)

    def score(self, stored: Stored, count: Array) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        xp = namespace_of(stored.score)
        if stored.whole:
            number: Any = stored.score.shape[-1]
            return self._among(stored.score, stored.score, stored.score, number)[..., 0]
        counted = stored.valid & ~stored.pinned
        number = count_true(counted, axis=-1, keepdims=True)
        some = number > 0
        number = xp.astype(xp.where(some, number, xp.ones_like(number)), stored.score.dtype)
        high = xp.where(counted | ~some, stored.score, -math.inf)
        low = xp.where(counted | ~some, stored.score, math.inf)
        start = self._among(stored.score, high, low, number, counted)
        return xp.where(some, start, xp.zeros_like(start))[..., 0]

    def _among(
        self, score: Array, high: Array, low: Array, number: Any, counted: Array | None = None
    ) -> Array:
        """Work the score out, (..., 1), of those counted; None = all are.

        ``high`` and ``low`` are the scores with what is not counted out of the way.
        """
        xp = namespace_of(score)

        def among(x: Array) -> Array:
            return x if counted is None else xp.where(counted, x, xp.zeros_like(x))

        highest = xp.max(high, axis=-1, keepdims=True)
        lowest = xp.min(low, axis=-1, keepdims=True)
        # Measured from the highest score: equal scores give exactly zero deviation.
        below = among(score - highest)
        mean = _sum(below) / number
        start = highest + mean
        if self.sigmas:
            sigma = xp.sqrt(_sum(among((below - mean) ** 2)) / number)
            start = highest + (mean - self.sigmas * sigma)
        of_range, of_largest = SNAP_RANGES
        near = of_range * (highest - lowest) + of_largest * xp.maximum(highest, -lowest)
        close = xp.abs(score - start) <= near
        if counted is not None:
            close = close & counted
        same = xp.min(xp.where(close, score, math.inf), axis=-1, keepdims=True)
        return xp.where(same < math.inf, same, start)


@dataclass(frozen=True)
class ConstantScore:
    """The same score for every new entry.

    Examples
    --------
    >>> ConstantScore(0.0).value
    0.0
    """

    value: float = 0.0

    def __post_init__(self) -> None:
        _finite("ConstantScore", "value", self.value)

    def score(self, stored: Stored, count: Array) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        xp = namespace_of(stored.score)
        return xp.full_like(stored.score[..., 0], self.value)


@dataclass(frozen=True)
class QuantileScore:
    """A low quantile of the stored scores: new entries beat at least that share of the memory.

    Cannot freeze, whatever the distribution of the scores, because it is one of them.

    Examples
    --------
    >>> QuantileScore(0.1).quantile
    0.1
    """

    quantile: float = 0.1

    def __post_init__(self) -> None:
        _share("QuantileScore", "quantile", self.quantile)

    def score(self, stored: Stored, count: Array) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        return _order_statistic(stored, _portion(_number(stored), self.quantile))


@dataclass(frozen=True)
class QuotaScore:
    """Admit at least this share of the new entries of every chunk, whatever their scores.

    The score is that of the k-th lowest stored entry, k being the share of the chunk.

    Examples
    --------
    >>> QuotaScore(0.5).share
    0.5
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        _share("QuotaScore", "share", self.share)

    def score(self, stored: Stored, count: Array) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        return _order_statistic(stored, _portion(count, self.share))


#: Any rule for the score of new entries.
AnyInitial = InitialScore | ConstantScore | QuantileScore | QuotaScore


def _sum(x: Array) -> Array:
    xp = namespace_of(x)
    return xp.sum(x, axis=-1, keepdims=True, dtype=x.dtype)


def _number(stored: Stored) -> Array:
    return count_true(stored.valid & ~stored.pinned, axis=-1)


def _portion(number: Array, share: float) -> Array:
    """Take a share of a number, rounded up, in whole numbers so that libraries agree."""
    return (number * round(share * 10000) + 9999) // 10000


def _order_statistic(stored: Stored, k: Array) -> Array:
    """Return the k-th lowest stored score, k brought into 1..number; 0 for an empty memory."""
    xp = namespace_of(stored.score)
    number = _number(stored)
    k = xp.minimum(xp.maximum(k, xp.ones_like(k)), number)
    counted = stored.valid & ~stored.pinned
    ascending = xp.sort(xp.where(counted, stored.score, math.inf), axis=-1)
    rank = numbers(ascending.shape[-1], ascending)
    here = rank == (k - 1)[..., None]
    picked = xp.where(here, ascending, xp.zeros_like(ascending))
    return xp.sum(picked, axis=-1, dtype=picked.dtype)


def _finite(where: str, name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ConfigError(f"{where}: {name} is {value}, expected a finite number.")


def _share(where: str, name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(
            f"{where}: {name} is {value}, expected a share from 0 to 1. Write 0.1 for ten per cent."
        )
