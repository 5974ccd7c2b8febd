"""The contract between a memory and its eviction policy.

A policy is a frozen dataclass of plain values with up to three pure methods; everything that
changes lives in the memory's state. Higher score = keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from attendre_core.backend import Array
from attendre_core.policies.initial_score import InitialScore

if TYPE_CHECKING:
    from attendre_core.memory.attention import Attention

__all__ = ["Policy", "Stored"]


class Stored(NamedTuple):
    """What a policy may know about the stored entries.

    Attributes
    ----------
    score
        Floating, (batch, slots). Higher = keep.
    position
        int32, (batch, slots): where in the input the entry stood.
    valid
        Boolean, (batch, slots): False = an empty slot.
    arrival
        int32, (batch, slots): how many entries of this row came before it.
    pinned
        Boolean, (batch, slots): never evicted.
    observed
        Boolean, (batch, slots): some query has seen it already.
    whole
        Known now: there is no empty slot, and nothing is pinned.

    With ``per_head=True`` all are (batch, kv_heads, slots).
    """

    score: Array
    position: Array
    valid: Array
    arrival: Array
    pinned: Array
    observed: Array
    whole: bool = False


@dataclass(frozen=True)
class Policy:
    """Base of all policies; subclass it and write one to three of its methods.

    Laws a policy must obey: its methods are pure functions of their arguments in array-API
    operations; what they say of one batch row depends on that row alone; an empty slot and an
    invalid query change nothing; equal inputs give equal scores. The memory does the rest: ties
    (the older entry goes), pinned entries, entries that no query saw (they keep their score).

    Examples
    --------
    A policy that keeps what the last query weighs most:

    >>> from dataclasses import dataclass
    >>> import attendre_core as at
    >>> @dataclass(frozen=True)
    ... class LastWeight(at.Policy):
    ...     def observe(self, stored, attention):
    ...         last = attention.last()
    ...         return last.pool(last.weights, heads="mean", unseen=stored.score)
    >>> at.KeyValueMemory(size=64, policy=LastWeight()).policy
    LastWeight()
    """

    @property
    def sinks(self) -> int:
        """How many of the first entries of a row are never evicted."""
        return 0

    @property
    def needs_pairs(self) -> bool:
        """Whether `observe` reads logits or weights of single pairs, not only their sums.

        It changes no result, only how attention is computed.
        """
        return type(self).observe is not Policy.observe

    def enter(self, stored: Stored, count: Array) -> Array:
        """Return the score of new entries, (batch,) [(batch, kv_heads)].

        Parameters
        ----------
        stored
            The entries before insertion.
        count
            int32, (batch,): how many valid entries arrive.
        """
        return InitialScore().score(stored, count)

    def observe(self, stored: Stored, attention: Attention) -> Array | None:
        """Return the new scores, (batch, slots), after queries attended; None leaves them.

        Parameters
        ----------
        stored
            The entries with their scores so far.
        attention
            What the queries of this step did: logits, weights, which entries were in the top K.
        """
        return None

    def priority(self, stored: Stored) -> Array | None:
        """Return what is compared when entries compete; None compares arrival alone."""
        return stored.score
