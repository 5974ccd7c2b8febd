"""The score that a new entry starts with (paper, section 3.1).

No query has attended to a new entry yet. If it starts too high, new entries displace important
old ones; if it starts too low, they are all refused and the memory is *frozen*
(`FrozenMemoryWarning`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.ops.admission import mean_less_deviations
from attendre_core.ops.counting import count_true
from attendre_core.policies.base import New, Policy, Stored

__all__ = ["AnyInitial", "ConstantScore", "InitialScore", "QuantileScore", "QuotaScore", "Scored"]


@dataclass(frozen=True)
class InitialScore:
    """mu - sigmas * sigma of the stored scores, per example; 0 while nothing is stored.

    Parameters
    ----------
    sigmas
        The paper's c: 1 by default, 2 for LRA-last and 1.5 for LRA-max and LRA-sum on PaLM 2.
        May be 0 or negative. The higher it is, the fewer new entries are admitted.

    Notes
    -----
    sigma is the population standard deviation. Pinned entries are left out, because new entries
    do not compete with them (specification, reading 5). A result within rounding error of a
    stored score is set to that score, so that all libraries see the same tie.

    Examples
    --------
    >>> InitialScore(sigmas=0.0)
    InitialScore(sigmas=0.0)
    """

    sigmas: float = 1.0

    def __post_init__(self) -> None:
        _finite("InitialScore", "sigmas", self.sigmas)

    def score(self, stored: Stored, new: New) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        return mean_less_deviations(stored.score, stored.valid & ~stored.pinned, self.sigmas)


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

    def score(self, stored: Stored, new: New) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        xp = namespace_of(stored.score)
        return xp.full_like(stored.score[..., 0], self.value)


@dataclass(frozen=True)
class QuantileScore:
    """A low quantile of the stored scores: new entries rank above at least that share of them.

    The score is one of the stored scores, so the memory cannot freeze, however they are
    distributed.

    Examples
    --------
    >>> QuantileScore(0.1).quantile
    0.1
    """

    quantile: float = 0.1

    def __post_init__(self) -> None:
        _share("QuantileScore", "quantile", self.quantile)

    def score(self, stored: Stored, new: New) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        return _order_statistic(stored, _portion(_number(stored), self.quantile))


@dataclass(frozen=True)
class QuotaScore:
    """Admit at least this share of the new entries of every chunk.

    The score is the k-th lowest stored score, where k is this share of the chunk.

    Examples
    --------
    >>> QuotaScore(0.5).share
    0.5
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        _share("QuotaScore", "share", self.share)

    def score(self, stored: Stored, new: New) -> Array:
        """Return the score for new entries, (batch,) or (batch, kv_heads)."""
        xp = namespace_of(stored.score)
        count = xp.reshape(new.count, new.count.shape + (1,) * (stored.score.ndim - 2))
        return _order_statistic(stored, _portion(count, self.share))


#: Every rule for the score of new entries.
AnyInitial = InitialScore | ConstantScore | QuantileScore | QuotaScore


class Scored(Policy):
    """Base of the policies that have a field ``initial``, the rule for the score of new entries."""

    initial: AnyInitial

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the initial score."""
        return self.initial.score(stored, new)

    def priority(self, stored: Stored) -> Array | None:
        """Compete by score."""
        return stored.score


def _number(stored: Stored) -> Array:
    return count_true(stored.valid & ~stored.pinned, axis=-1)


def _portion(number: Array, share: float) -> Array:
    """Return a share of a number, rounded up; in integers, so that all libraries agree."""
    return (number * round(share * 10000) + 9999) // 10000


def _order_statistic(stored: Stored, k: Array) -> Array:
    """Return the k-th lowest stored score, k clamped to 1..number; 0 for an empty memory."""
    xp = namespace_of(stored.score)
    number = _number(stored)
    k = xp.minimum(xp.maximum(k, xp.ones_like(k)), number)  # also broadcasts k to heads
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
