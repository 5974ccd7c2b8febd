"""The contract between a memory and its eviction policy.

A policy is a frozen dataclass of plain values with a few pure methods; everything that changes
is in the memory's state. Higher score = keep.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from attendre_core.backend import Array, namespace_of

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["New", "Policy", "Stored"]


class Stored(NamedTuple):
    """What a policy sees of the stored entries.

    With ``per_head=True`` the (batch, slots) arrays are (batch, kv_heads, slots).

    Attributes
    ----------
    key, value
        (batch, kv_heads, slots, dim), without positions; None in a `DataOnlyMemory`.
    position
        int32, (batch, slots): position in the input.
    valid
        Boolean, (batch, slots): False = an empty slot.
    score
        Floating, (batch, slots). Higher = keep.
    arrival
        int32, (batch, slots): how many entries of the row arrived before it.
    pinned
        Boolean, (batch, slots): never evicted.
    observed
        Boolean, (batch, slots): True once a query has seen the entry.
    aux
        Metadata, nested arrays (batch, slots, ...), or None.
    clock
        int32, (batch,): entries of the row inserted so far.
    policy_state
        What `Policy.init` or `Policy.remember` returned.
    params
        The arrays passed as ``policy_params``, or None.
    """

    key: Array | None
    value: Array | None
    position: Array
    valid: Array
    score: Array
    arrival: Array
    pinned: Array
    observed: Array
    aux: Any = None
    clock: Array | None = None
    policy_state: Any = None
    params: Any = None

    @property
    def age(self) -> Array:
        """int32, (batch, slots): how many entries have arrived since; 0 for the newest."""
        if self.clock is None:
            raise AttributeError("Stored.age: this memory keeps no clock for its policy.")
        xp = namespace_of(self.arrival)
        now = xp.reshape(self.clock, self.clock.shape + (1,) * (self.arrival.ndim - 1))
        return now - 1 - self.arrival


class New(Protocol):
    """What a policy sees of arriving entries; records are (batch, seq), or per head."""

    @property
    def key(self) -> Array:
        """(batch, kv_heads, seq, dim), without positions."""

    @property
    def value(self) -> Array:
        """(batch, kv_heads, seq, dim)."""

    @property
    def position(self) -> Array:
        """int32: position in the input."""

    @property
    def valid(self) -> Array:
        """Boolean: False = padding, or an entry that is not finite."""

    @property
    def arrival(self) -> Array:
        """int32: how many entries of the row arrived before it."""

    @property
    def pinned(self) -> Array:
        """Boolean: never to be evicted."""

    @property
    def aux(self) -> Any:
        """Metadata, nested arrays (batch, seq, ...), or None."""

    @property
    def count(self) -> Array:
        """int32, (batch,): how many of them are valid."""


@dataclass(frozen=True)
class Policy:
    """Base of all policies: subclass it and override one or more of its methods.

    Laws a policy must obey: its methods are pure functions of their arguments, written in
    array-API operations, and read no value; what they return for a batch row depends on that row
    alone; empty slots and invalid queries change nothing; equal inputs give equal scores. The
    memory handles the rest: ties (the older entry is evicted), sinks, pinned and recent entries,
    and entries that no query saw (they keep their score). ``pytest --pyargs attendre_conformance
    --attendre-policy module:Class`` checks all of it.

    Examples
    --------
    A policy that keeps the entries with the most weight from the last query:

    >>> from dataclasses import dataclass
    >>> import attendre_core as at
    >>> @dataclass(frozen=True)
    ... class LastWeight(at.Policy):
    ...     def observe(self, stored, attention):
    ...         last = attention.last()
    ...         return last.pool("weights", heads="mean")
    >>> at.KeyValueMemory(size=64, policy=LastWeight()).policy
    LastWeight()
    """

    # How many of the first entries of a row are never evicted. Not a dataclass field.
    sinks = 0
    # Whether scores are sums of which only the differences matter. Not a field either.
    drifts = False
    # Whether keys are compared with each other: then they must be held without positions.
    compares_keys = False

    def init(self, stored: Stored) -> Any:
        """Return the policy's own initial state, nested arrays (batch, ...), or None."""
        return None

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the score of new entries: one per row, (batch,), or one per entry, (batch, seq).

        With ``per_head=True``, (batch, kv_heads) or (batch, kv_heads, seq).

        Parameters
        ----------
        stored
            The entries before insertion.
        new
            The entries that arrive.
        """
        from attendre_core.policies.initial_score import InitialScore

        return InitialScore().score(stored, new)

    def observe(self, stored: Stored, attention: Attention) -> Array | None:
        """Return the scores, (batch, slots), after queries attended; None leaves them unchanged.

        Parameters
        ----------
        stored
            The entries with their scores so far.
        attention
            What the queries of this step attended to.
        """
        return None

    def remember(self, stored: Stored, attention: Attention) -> Any:
        """Return the policy's own state after this step, nested like the one from `init`."""
        return stored.policy_state

    def priority(self, stored: Stored) -> Array | None:
        """Return the numbers by which entries compete; None = by arrival alone."""
        return stored.score

    def by_arrival(self, stored: Stored) -> None:
        """Compete by arrival alone: a `priority` for policies without scores."""
        return None
