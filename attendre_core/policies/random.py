"""Random eviction: the baseline that every other policy should beat."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.ties import RandomTies

__all__ = ["Random"]


@dataclass(frozen=True)
class Random(Policy):
    """Keep a uniform random sample of everything read.

    Parameters
    ----------
    seed
        The sample depends only on the seed and on the order of arrival, on every library.

    Examples
    --------
    >>> Random(seed=3)
    Random(seed=3)
    """

    seed: int = 0

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: the score is not used."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Return a pseudo-random number per entry, which never changes."""
        xp = namespace_of(stored.score)
        return xp.astype(RandomTies(self.seed).order(stored.arrival), stored.score.dtype)
