"""A random sample: what any policy that claims to choose must beat."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.ties import RandomTies

__all__ = ["Random"]


@dataclass(frozen=True)
class Random(Policy):
    """Keep a random sample of everything read, each entry as likely as any other.

    Parameters
    ----------
    seed
        The sample depends on it and on the order of arrival alone, on every library.

    Examples
    --------
    >>> Random(seed=3)
    Random(seed=3)
    """

    seed: int = 0

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: no score is needed."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Give each entry a number that looks random and never changes."""
        xp = namespace_of(stored.score)
        return xp.astype(RandomTies(self.seed).order(stored.arrival), stored.score.dtype)
