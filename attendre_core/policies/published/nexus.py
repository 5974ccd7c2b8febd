"""Nexus: a random sample in which an entry's chance to stay grows with its attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.initial_score import InitialScore
from attendre_core.policies.ties import RandomTies

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Nexus"]

#: The least weight of an entry, so that its logarithm is finite.
_LEAST = 1e-9


@dataclass(frozen=True)
class Nexus(Policy):
    """Keep a weighted random sample: the entries with the largest u^(1/w).

    The reservoir of "Forget Without Compromise: Nexus Sampling for Streaming KV-Cache Eviction
    Under Fixed Budgets" (arXiv 2606.23961). w is the softmax weight that an entry has got from all
    queries so far, u a pseudo-random number between 0 and 1 that never changes. An entry of little
    weight is not lost for certain, as it is with `H2O`, but with a probability.

    Parameters
    ----------
    seed
        The sample depends on it and on the order of arrival, on every library in the same way.

    Notes
    -----
    Laws: if all weights are equal, the sample is uniform; one factor for all weights changes
    nothing. Entries compete by log w - log(-log u), which has the order of u^(1/w). Until a query
    has seen a new entry its weight is the mean of the others'. The weights of the original come
    from a walk over the attention between tokens, which needs the queries of stored tokens; here
    they are direct attention, added up, so old entries have an advantage.

    Examples
    --------
    >>> Nexus(seed=3)
    Nexus(seed=3)
    """

    seed: int = 0

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the mean weight of the stored entries."""
        return InitialScore(0.0).score(stored, new)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add the weights of this step's queries; the first ones replace the mean."""
        xp = namespace_of(stored.score)
        nothing = xp.zeros_like(stored.score)
        past = xp.where(stored.observed, stored.score, nothing)
        return past + attention.pool("weights", queries="sum", heads="mean", unseen=nothing)

    def priority(self, stored: Stored) -> Array:
        """Return a number in the order of u^(1/w)."""
        xp = namespace_of(stored.score)
        known = xp.where(stored.arrival < 0, xp.zeros_like(stored.arrival), stored.arrival)
        # 23 of 30 bits, so that float32 holds u and it is never 0 or 1.
        number = xp.bitwise_right_shift(RandomTies(self.seed).order(known), 7)
        u = (xp.astype(number, stored.score.dtype) + 0.5) / 2.0**23
        weight = xp.where(stored.valid, stored.score, xp.ones_like(stored.score))
        return xp.log(xp.where(weight > _LEAST, weight, _LEAST)) - xp.log(-xp.log(u))
