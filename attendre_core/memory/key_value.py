"""The key-value memory: insert with eviction, retrieve, attend (paper, section 3.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attendre_core import checks
from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.joint.beside import Beside
from attendre_core.memory.admission import Exchange, arriving, carry_out, compete, hand_back
from attendre_core.memory.arrivals import Arrivals
from attendre_core.memory.attend import Reading, gather_top_k, observe, read
from attendre_core.memory.inside import KeyValueStates
from attendre_core.memory.room import make_room
from attendre_core.memory.state import EvictedEntries, KeyValueState, RetrievedEntries
from attendre_core.positions.base import Encoding

__all__ = ["KeyValueMemory"]


@dataclass(frozen=True)
class KeyValueMemory(KeyValueStates):
    """A memory of fixed size for the keys and values of an attention layer.

    A step of the paper is `insert` (new entries compete with the stored ones, and what does not
    fit is returned) followed by `attend` or `retrieve` (which also update the scores). The memory
    itself is frozen and holds no arrays; the state is passed in and returned.

    Parameters
    ----------
    size
        M: how many entries a row holds, including those of the present chunk.
    policy
        Decides what is evicted when the memory is full.
    present
        ``"compete"``, as in the paper: new entries may be refused before any query attends to
        them. ``"visible"``: the new chunk is attended to in its own step and competes in the
        next one, so up to size + chunk entries are held.
    per_head
        Evict from each K/V head separately (the paper's footnote) instead of whole tokens.
    protect_recent
        How many of the most recent entries are never evicted.
    pin
        Ranges of positions, ((start, stop), ...), whose entries are never evicted: a system
        prompt, the question.
    ties
        ``"recency"``: of equals the older is evicted first. `RandomTies`: a seeded random order.
    scale
        Multiplies the logits; None is 1/sqrt(head_dim).
    retrieval
        How `attend` finds the top K: ``"threshold"`` (exact, fast), ``"gather"`` (exact, as in
        the paper, slow) or ``"approximate"`` (a subset of the exact top K).
    passes
        Bisection passes of ``"approximate"``; see `attendre_core.ops.approximate_top_k`.
    sinks
        How many of the first entries are never evicted, with any policy; the larger of this and
        the policy's own sinks applies.
    head_sizes
        Entries of each K/V head, at most ``size``; needs ``per_head=True``. Empty: ``size`` in
        every head. Slots that a head may not use stay empty: arrays are as large as the largest
        head needs.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=4, policy=at.FIFO())
    >>> state = memory.init(batch=1, heads=1, head_dim=2)
    >>> chunk = np.ones((1, 6, 1, 2), dtype=np.float32)
    >>> state, evicted = memory.insert(state, chunk, chunk)
    >>> sorted(state.position[0].tolist()), sorted(evicted.position[evicted.valid].tolist())
    ([2, 3, 4, 5], [0, 1])
    >>> state, output = memory.attend(state, chunk[:, :1])
    >>> output.shape
    (1, 1, 1, 2)
    """

    # ---------------------------------------------------------------- the paper's operations

    def insert(
        self,
        state: KeyValueState,
        key: Array,
        value: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        aux: Any = None,
        pinned: Array | None = None,
        score: Array | None = None,
        policy_params: Any = None,
        donate: bool = False,
    ) -> tuple[KeyValueState, EvictedEntries]:
        """Insert a chunk, evict down to the size, and return what was evicted.

        Parameters
        ----------
        state
            From `init` or the last call; unchanged unless donated.
        key, value
            (batch, seq, kv_heads, dim), without positions.
        position
            int32, (batch, seq); None continues counting from the entries inserted so far.
        valid
            Boolean, (batch, seq); False = padding, which is ignored. None = all valid.
        aux
            Metadata (batch, seq, ...), nested as in `init`.
        pinned
            Boolean, (batch, seq): never evict these.
        score
            (batch, seq): initial scores, instead of the policy's.
        policy_params
            Arrays that the policy needs, if any.
        donate
            The caller will not use ``state`` again, so its arrays may be overwritten.

        Returns
        -------
        state
            The new state.
        evicted
            Displaced old entries and refused new ones, as many as were inserted; only the valid
            ones are real. With ``present="visible"``, what was evicted of the earlier chunks,
            (batch, chunk).

        Notes
        -----
        An entry with NaN or infinity raises an error where values may be read (see
        `value_checks`); elsewhere it is refused, that is, returned as evicted. With
        ``present="visible"`` it is returned in place of an entry of an earlier chunk, which stays
        until the next insertion.
        """
        new = self._arriving(state, key, value, position, valid, aux, pinned, score)
        if new.valid.shape[-1] == 0:
            return state, EvictedEntries(
                key, value, new.position, new.valid, new.aux, new.score, new.arrival
            )
        exchange = self._decide(self, state, new, policy_params)
        evicted = hand_back(state, exchange)  # first: a donated state is overwritten
        return carry_out(state, exchange, donate=donate), evicted

    def store(
        self,
        state: KeyValueState,
        key: Array,
        value: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        aux: Any = None,
        score: Array | None = None,
        policy_params: Any = None,
        donate: bool = False,
    ) -> KeyValueState:
        """Insert like `insert`, but do not return what was evicted."""
        new = self._arriving(state, key, value, position, valid, aux, None, score)
        if new.valid.shape[-1] == 0:
            return state
        exchange = self._decide(self, state, new, policy_params)
        return carry_out(state, exchange, donate=donate)

    def attend(
        self,
        state: KeyValueState,
        query: Array,
        position: Array | None = None,
        valid: Array | None = None,
        top_k: int | None = None,
        causal: bool = False,
        *,
        encoding: Encoding | None = None,
        encoding_params: Any = None,
        policy_params: Any = None,
        document: Array | None = None,
        beside: Beside | None = None,
    ) -> tuple[KeyValueState, Array]:
        """Attend to the stored entries and update their scores.

        Parameters
        ----------
        query
            (batch, queries, heads, head_dim); heads is a multiple of the K/V heads.
        position
            int32, (batch, queries); None = the last positions inserted.
        valid
            Boolean, (batch, queries); the output of an invalid query is zeros.
        top_k
            Attend only to the K best entries of each query and head; None = all.
        causal
            Attend only to entries at or before the query's position.
        encoding, encoding_params
            Position scheme, applied to the stored keys in this call, and its learned arrays.
        policy_params
            Arrays that the policy needs, if any.
        document
            int32, (batch, queries): attend only to entries with the same ``aux["document"]``.
        beside
            Further entries that take part in the softmax; see `Beside`.

        Returns
        -------
        state
            With updated scores.
        output
            (batch, queries, heads, value_dim); zeros where there is nothing to attend to.
        """
        where = "KeyValueMemory.attend"
        given = (query, position, valid, causal, encoding, encoding_params, policy_params)
        if query.ndim == 4 and query.shape[1] == 0:
            checks.same_library(where, tuple(state), query)
            backend = backend_of(query)
            shape = (query.shape[0], 0, query.shape[2], state.value.shape[3])
            device = backend.device_of(query)
            return state, backend.xp.zeros(shape, dtype=query.dtype, device=device)
        reading = self._read(where, state, top_k, *given, document, beside)
        state = observe(where, self.policy, state, reading.attention)
        if self.retrieval == "gather" and top_k is not None and top_k < state.key.shape[2]:
            return state, reading.gathered_output(top_k)
        return state, reading.output()

    def retrieve(
        self,
        state: KeyValueState,
        query: Array,
        position: Array | None = None,
        valid: Array | None = None,
        top_k: int | None = None,
        *,
        causal: bool = False,
        encoding: Encoding | None = None,
        encoding_params: Any = None,
        policy_params: Any = None,
        document: Array | None = None,
    ) -> tuple[KeyValueState, RetrievedEntries]:
        """Gather the K best entries of each query and head, and update the scores.

        Parameters are those of `attend`; ``top_k=None`` retrieves as many as there are slots.

        Returns
        -------
        state
            With updated scores.
        retrieved
            Best first; of equal similarities the entry inserted later comes first. Where a query
            has fewer than K entries to attend to, ``valid`` is False, keys and values are zeros
            and similarities are -inf.
        """
        where = "KeyValueMemory.retrieve"
        given = (query, position, valid, causal, encoding, encoding_params, policy_params)
        reading = self._read(where, state, top_k, *given, document)
        retrieved = gather_top_k(reading, state, top_k or state.key.shape[2])
        return observe(where, self.policy, state, reading.attention), retrieved

    # ---------------------------------------------------------------- inside

    @property
    def _decide(self) -> Callable[..., Exchange]:
        return make_room if self.present == "visible" else compete

    def _arriving(self, state: KeyValueState, *given: Any) -> Arrivals:
        """Check a chunk: key, value, position, valid, aux, pinned and score."""
        where = "KeyValueMemory.insert"
        checks.same_library(where, tuple(state), *given)
        checks.key_value_state(where, self, state)
        return arriving(where, self, state, *given)

    def _read(
        self, where: str, state: KeyValueState, top_k: int | None, query: Array, *given: Any
    ) -> Reading:
        """Check queries; given are the other arguments of `read`, in its order."""
        checks.same_library(where, tuple(state), query, *given[:2], *given[6:])
        checks.key_value_state(where, self, state)
        slots = state.key.shape[2]
        if top_k is not None:
            checks.whole_number(where, "top_k", top_k, least=1, hint="None attends to all.")
            if top_k > slots:
                raise ConfigError(
                    f"{where}: top_k is {top_k}, but the memory has {slots} slots. "
                    f"Use top_k=None to attend to all, or a memory of size {top_k} or more."
                )
        top_k = None if top_k == slots else top_k
        passes = self.passes if self.retrieval == "approximate" else None
        reading = read(where, state, self.scale, top_k, passes, query, *given)
        return reading if self.policy.soft_mask is None else reading.softened(self.policy)
