"""The key-value memory: insert with eviction, retrieve, attend (paper, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from attendre_core import checks
from attendre_core.backend import Array, Backend, Namespace, backend_of, kernel, resolve
from attendre_core.errors import ConfigError, DTypeError
from attendre_core.memory.chunk import new_entries
from attendre_core.memory.inserting import clear_room, insert_competing, insert_visible
from attendre_core.memory.reading import (
    Reading,
    attend_dense,
    attend_gathered,
    attend_selected,
    gather_top_k,
    read,
)
from attendre_core.memory.report import FROZEN_BELOW, MemoryReport, report_of, warn_if_frozen
from attendre_core.memory.rows import reorder_rows, reset_rows
from attendre_core.memory.scoring import observe
from attendre_core.memory.sorting import sorted_by_position, with_scores_of
from attendre_core.memory.spec import byte_count, check_spec, state_bytes
from attendre_core.memory.state import (
    Entries,
    EvictedEntries,
    KeyValueState,
    RetrievedEntries,
    empty_like,
    empty_state,
)
from attendre_core.policies import FIFO, Policy, RandomTies
from attendre_core.positions.base import Encoding

__all__ = ["KeyValueMemory"]


@dataclass(frozen=True)
class KeyValueMemory:
    """A memory of fixed size for the keys and values of an attention layer.

    A step of the paper is `insert` (new entries compete with stored ones, what does not fit is
    handed back) and then `attend` or `retrieve` (which also updates the scores). The spec is
    frozen and holds no arrays; the state is passed in and returned.

    Parameters
    ----------
    size
        M: how many entries a row holds, the present chunk included.
    policy
        Who goes when it is full.
    present
        ``"compete"``: the paper's order, new entries may be refused before anyone attends to
        them. ``"visible"``: the new chunk is attended to in its own step and competes in the
        next one; up to size + chunk entries are then held.
    per_head
        Evict for each K/V head on its own (the paper's footnote) instead of whole tokens.
    protect_recent
        The last so many entries are never evicted.
    pin
        Ranges of positions, ((start, stop), ...), whose entries are never evicted: a system
        prompt, the question.
    ties
        ``"recency"``: of equals the older goes first. `RandomTies`: in a seeded random order.
    scale
        Multiplies the logits; None is 1/sqrt(head_dim).
    retrieval
        How `attend` finds the top K: ``"threshold"`` (exact, fast), ``"gather"`` (exact, as in
        the paper, slow) or ``"approximate"`` (a subset of the exact top K).
    passes
        Bisection passes of ``"approximate"``; see `attendre_core.ops.approximate_top_k`.

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

    size: int
    policy: Policy = FIFO()
    present: Literal["compete", "visible"] = "compete"
    per_head: bool = False
    protect_recent: int = 0
    pin: tuple[tuple[int, int], ...] = ()
    ties: Literal["recency"] | RandomTies = "recency"
    scale: float | None = None
    retrieval: Literal["threshold", "gather", "approximate"] = "threshold"
    passes: int = 16

    def __post_init__(self) -> None:
        check_spec(self)

    # ---------------------------------------------------------------- making states

    def init(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
        *,
        value_dim: int | None = None,
        aux: Any = None,
        chunk: int = 0,
    ) -> KeyValueState:
        """Make an empty state.

        Parameters
        ----------
        batch, heads, head_dim
            Rows, K/V heads (not query heads) and width of a head.
        xp
            Array library: a namespace such as ``numpy``, ``torch``, ``jax.numpy``, or its name.
        dtype
            Of keys and values; any library's dtype or its name, float32 by default.
        device
            Passed on to the library.
        value_dim
            Width of a value, ``head_dim`` by default.
        aux
            Nested arrays (batch, any, ...) that show shape and dtype of metadata.
        chunk
            Longest chunk to be inserted, for ``present="visible"``, whose state has
            size + chunk slots; 0 lets the first insert decide.
        """
        where = "KeyValueMemory.init"
        for name, value in (("batch", batch), ("heads", heads), ("head_dim", head_dim)):
            checks.whole_number(where, name, value, least=1, hint="It is a length of an axis.")
        checks.whole_number(where, "chunk", chunk, least=0, hint="0 lets the first insert decide.")
        xp = resolve(xp).xp
        dtype = checks.dtype_named(xp, dtype)
        if not xp.isdtype(dtype, "real floating"):
            raise DTypeError(
                f"{where}: dtype is {checks.dtype_name(dtype)}, expected a floating one. "
                "Use float32, or float16 or bfloat16 to save room."
            )
        slots = self.size + (chunk if self.present == "visible" else 0)
        return empty_state(
            xp, batch, heads, slots, head_dim, value_dim or head_dim, dtype, device,
            self.per_head, aux,
        )  # fmt: skip

    def nbytes(
        self,
        batch: int,
        heads: int,
        head_dim: int,
        dtype: Any = "float32",
        *,
        value_dim: int | None = None,
        aux_bytes: int = 0,
        chunk: int = 0,
    ) -> int:
        """Return the bytes a state will take, before anything is allocated.

        ``aux_bytes`` is what the metadata of one entry takes.
        """
        slots = self.size + (chunk if self.present == "visible" else 0)
        return state_bytes(
            slots, self.per_head, batch, heads, head_dim, value_dim, dtype, aux_bytes
        )

    @classmethod
    def within_bytes(
        cls,
        budget: int | str,
        *,
        batch: int = 1,
        heads: int,
        head_dim: int,
        dtype: Any = "float32",
        value_dim: int | None = None,
        aux_bytes: int = 0,
        chunk: int = 0,
        **spec: Any,
    ) -> KeyValueMemory:
        """Make the largest memory whose state fits into a number of bytes.

        Parameters
        ----------
        budget
            Bytes, or words such as ``"64 MiB"``.
        **spec
            The other fields of the memory.

        Examples
        --------
        >>> KeyValueMemory.within_bytes("1 MiB", heads=8, head_dim=64).size
        255
        """

        def taken(size: int) -> int:
            return cls(size=size, **spec).nbytes(
                batch, heads, head_dim, dtype,
                value_dim=value_dim, aux_bytes=aux_bytes, chunk=chunk,
            )  # fmt: skip

        total = byte_count(budget)
        least = max(1, spec.get("protect_recent", 0) + spec.get("policy", FIFO()).sinks)
        each = taken(least + 1) - taken(least)
        size = least + (total - taken(least)) // each
        if size < least:
            raise ConfigError(
                f"KeyValueMemory.within_bytes: {total} bytes hold less than the smallest such "
                f"memory, which takes {taken(least)}. Raise the budget, or lower batch or heads."
            )
        return cls(size=size, **spec)

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
        donate: bool = False,
    ) -> tuple[KeyValueState, EvictedEntries]:
        """Insert a chunk, evict down to the size, hand back what went.

        Parameters
        ----------
        state
            From `init` or the last call; unchanged unless donated.
        key, value
            (batch, seq, kv_heads, dim), un-rotated.
        position
            int32, (batch, seq); None counts on from the entries inserted so far.
        valid
            Boolean, (batch, seq); False = padding, which is ignored. None = all real.
        aux
            Metadata (batch, seq, ...), nested as in `init`.
        pinned
            Boolean, (batch, seq): never evict these.
        score
            (batch, seq): scores to enter with, instead of the policy's.
        donate
            The caller will not use ``state`` again, so its arrays may be overwritten.

        Returns
        -------
        state
            The new state.
        evicted
            As many entries as were inserted, of which only the valid ones are real: old ones
            displaced and new ones refused. With ``present="visible"``, what left of the chunks
            before, (batch, chunk).

        Notes
        -----
        An entry with NaN or infinity raises an error where values may be read (see
        `value_checks`); elsewhere it never enters and is handed back. With
        ``present="visible"`` it is handed back in the stead of one of the chunks before, which
        stays until the next insertion.
        """
        given = (key, value, position, valid, aux, pinned, score)
        state, evicted = self._insert(state, given, donate, hand_back=True)
        return state, cast("EvictedEntries", evicted)

    def store(
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
        donate: bool = False,
    ) -> KeyValueState:
        """Insert as `insert` does, for a caller who does not look at what goes.

        Outside compiled code it takes less time, because evicted entries are not copied.
        """
        given = (key, value, position, valid, aux, pinned, score)
        return self._insert(state, given, donate, hand_back=False)[0]

    def settle(self, state: KeyValueState) -> tuple[KeyValueState, EvictedEntries]:
        """Let the present chunk compete now: cut the state down to ``size`` entries.

        Only ``present="visible"`` holds more than that; for others nothing happens.
        """
        self._check_state("KeyValueMemory.settle", state)
        return clear_room(self, state)

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
        document: Array | None = None,
    ) -> tuple[KeyValueState, Array]:
        """Attend to the stored entries and update their scores.

        Parameters
        ----------
        query
            (batch, queries, heads, head_dim); heads a multiple of the K/V heads.
        position
            int32, (batch, queries); None takes the last positions inserted.
        valid
            Boolean, (batch, queries); the output of an invalid query is zeros.
        top_k
            Only the K best entries of each query and head; None = all.
        causal
            Attend only to entries at or before the query's position.
        encoding, encoding_params
            Position scheme, applied to the stored keys now, and its learned arrays.
        document
            int32, (batch, queries): attend only to entries whose ``aux["document"]`` is equal.

        Returns
        -------
        state
            With updated scores.
        output
            (batch, queries, heads, value_dim); zeros where there is nothing to attend to.
        """
        where = "KeyValueMemory.attend"
        if query.ndim == 4 and query.shape[1] == 0:
            xp = checks.same_library(where, tuple(state), query)
            shape = (query.shape[0], 0, query.shape[2], state.value.shape[3])
            return state, xp.zeros(shape, dtype=query.dtype)
        self._check_state(where, state)
        given, back = state, None
        dense = top_k is None or top_k >= state.key.shape[2]
        in_pieces = dense and self._takes_pieces(state, query, position, encoding)
        sort = encoding is not None and encoding.wants_sorted and not in_pieces
        sort = sort and _may_branch(state, position)
        if sort:
            state, back = sorted_by_position(state)
        reading = self._read(
            where, state, query, position, valid, top_k, causal, encoding, encoding_params,
            document, key_sorted=sort, in_pieces=in_pieces,
        )  # fmt: skip
        if top_k is None or dense:
            output = attend_dense(reading)
        elif self.retrieval == "gather":
            output = attend_gathered(reading, top_k)
        else:
            output = attend_selected(reading)
        state = observe(where, self.policy, state, reading.view)
        if back is not None:
            state = with_scores_of(given, state, back)
        return state, reading.restore(output)

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
        document: Array | None = None,
    ) -> tuple[KeyValueState, RetrievedEntries]:
        """Gather the K best entries of every query and head, and update the scores.

        Parameters
        ----------
        query, position, valid, causal, encoding, encoding_params, document
            As in `attend`.
        top_k
            K; None = as many as there are slots.

        Returns
        -------
        state
            With updated scores.
        retrieved
            Best first; of equal similarities the entry inserted later comes first. Beyond the
            allowed entries ``valid`` is False, keys and values are zeros, similarities -inf.
        """
        where = "KeyValueMemory.retrieve"
        reading = self._read(
            where, state, query, position, valid, top_k, causal, encoding, encoding_params,
            document,
        )  # fmt: skip
        retrieved = gather_top_k(reading, state, top_k or state.key.shape[2])
        return observe(where, self.policy, state, reading.view), retrieved

    # ---------------------------------------------------------------- looking inside

    def entries(self, state: KeyValueState) -> Entries:
        """Return the stored entries with axes (batch, slots, kv_heads, dim)."""
        self._check_state("KeyValueMemory.entries", state)
        xp = backend_of(state.key).xp
        return Entries(
            xp.permute_dims(state.key, (0, 2, 1, 3)),
            xp.permute_dims(state.value, (0, 2, 1, 3)),
            state.position,
            state.valid,
            state.score,
            state.arrival,
            state.pinned,
            state.aux,
        )

    def reset(self, state: KeyValueState, rows: Array) -> KeyValueState:
        """Empty single rows, e.g. where a new document begins.

        Parameters
        ----------
        rows
            Boolean, (batch,): True = empty this row.
        """
        self._check_state("KeyValueMemory.reset", state)
        return reset_rows("KeyValueMemory.reset", state, empty_like(state), rows)

    def reorder(self, state: KeyValueState, index: Array) -> KeyValueState:
        """Take rows in another order, with repetition: what beam search needs.

        Parameters
        ----------
        index
            Integer, (new batch,): row i of the result is row ``index[i]``.
        """
        self._check_state("KeyValueMemory.reorder", state)
        return reorder_rows("KeyValueMemory.reorder", state, index)

    def admitted_share(self, state: KeyValueState) -> Array:
        """Return the share of new entries that got in when the memory was full, (batch,).

        Of all entries evicted so far, those that had been admitted before; 1 while nothing was
        evicted. Near 0 the memory is frozen into the beginning of the input.
        """
        self._check_state("KeyValueMemory.admitted_share", state)
        xp = backend_of(state.key).xp
        evicted = xp.astype(state.evictions, xp.float32)
        refused = xp.astype(state.refusals, xp.float32)
        some = xp.where(evicted > 0, evicted, xp.ones_like(evicted))
        return 1.0 - refused / some

    def report(self, state: KeyValueState, *, warn_below: float = FROZEN_BELOW) -> MemoryReport:
        """Read what the memory holds and how it behaved; warn when it freezes.

        Warns
        -----
        FrozenMemoryWarning
            When a row admits a smaller share of new entries than ``warn_below``.
        """
        result = report_of(state, self.admitted_share(state))
        warn_if_frozen(result.admitted_share, warn_below, stacklevel=3)
        return result

    # ---------------------------------------------------------------- inside

    def _insert(
        self, state: KeyValueState, given: tuple[Any, ...], donate: bool, *, hand_back: bool
    ) -> tuple[KeyValueState, EvictedEntries | None]:
        """Insert ``given``: key, value, position, valid, aux, pinned, score."""
        where = "KeyValueMemory.insert"
        checks.same_library(where, tuple(state), *given)
        self._check_state(where, state)
        new = new_entries(where, self, state, *given)
        if new.valid.shape[-1] == 0:
            return state, EvictedEntries(
                given[0], given[1], new.position, new.valid, new.aux, new.score, new.arrival
            )
        if self.present == "visible":
            return insert_visible(self, state, new, donate, hand_back)
        return insert_competing(self, state, new, donate, hand_back)

    def _takes_pieces(
        self, state: KeyValueState, query: Array, position: Array | None, encoding: Encoding | None
    ) -> bool:
        """Whether the position scheme may hand the slots over in pieces.

        That pays where attention over pieces is fused, and nobody needs the logits of pairs.
        """
        if encoding is None or not encoding.has_pieces or self.policy.needs_pairs:
            return False
        if self.per_head or kernel("attention_over", query) is None:
            return False
        return _may_read(state, position)

    def _check_state(self, where: str, state: KeyValueState) -> None:
        least = self.size
        slots = state.key.shape[2] if isinstance(state, KeyValueState) else least
        fits = slots >= least if self.present == "visible" else slots == least
        heads = (None,) if self.per_head else ()
        record = (None, *heads, slots if fits else least)
        checks.belongs(
            where,
            state,
            KeyValueState,
            {"key": (None, None, record[-1], None), "position": record, "score": record},
            self,
        )

    def _read(
        self,
        where: str,
        state: KeyValueState,
        query: Array,
        position: Array | None,
        valid: Array | None,
        top_k: int | None,
        causal: bool,
        encoding: Encoding | None,
        encoding_params: Any,
        document: Array | None,
        key_sorted: bool = False,
        in_pieces: bool = False,
    ) -> Reading:
        checks.same_library(where, tuple(state), query, position, valid, document)
        self._check_state(where, state)
        slots = state.key.shape[2]
        if top_k is not None:
            checks.whole_number(where, "top_k", top_k, least=1, hint="None attends to all.")
            if top_k > slots:
                raise ConfigError(
                    f"{where}: top_k is {top_k}, but the memory has {slots} slots. "
                    f"Use top_k=None to attend to all, or a memory of size {top_k} or more."
                )
        return read(
            where,
            state,
            query,
            position,
            valid,
            scale=self.scale,
            causal=causal,
            top_k=top_k,
            passes=self.passes if self.retrieval == "approximate" else None,
            encoding=encoding,
            encoding_params=encoding_params,
            document=document,
            key_document=state.aux["document"] if _has_documents(state.aux) else None,
            key_sorted=key_sorted,
            in_pieces=in_pieces,
        )


def _has_documents(aux: Any) -> bool:
    return isinstance(aux, dict) and "document" in aux


def _may_branch(state: KeyValueState, position: Array | None) -> bool:
    """Whether code may depend on positions: they may be read now, or a kernel branches later."""
    return kernel("choose", state.position) is not None or _may_read(state, position)


def _may_read(state: KeyValueState, position: Array | None) -> bool:
    arrays = (state.position,) if position is None else (state.position, position)
    return all(bool(backend_of(array).is_concrete(array)) for array in arrays)
