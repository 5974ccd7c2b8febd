"""The Attendre layer: wait to attend (paper, section 3.2).

::

    q chunk ──► Q memory (N) ──► queries of N positions ago ──┐
                                                              ├──► attention ──► output, N late
    k, v chunk ──► K/V memory (M) ──► what survived ──────────┘

A query waits until N later positions have been read, so it attends to its past *and* to up to N
positions of its future. Everything that belongs to the query waits with it: the residual stream
(`carry`), positions, validity, metadata.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from attendre_core import checks
from attendre_core.backend import Array, Backend, Namespace, backend_of, numbers, resolve
from attendre_core.errors import ChunkTooLongWarning, ConfigError, StateError
from attendre_core.layer.trace import StepTrace, trace_step
from attendre_core.memory.chunk import check_flags
from attendre_core.memory.data_only import DataOnlyMemory, DataOnlyState
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.rows import reorder_rows
from attendre_core.memory.state import KeyValueState, grown
from attendre_core.ops.counting import running_count
from attendre_core.policies import FIFO
from attendre_core.positions import Encoding, NoPosition
from attendre_core.tree import tree_map

__all__ = ["AttendreLayer", "Chunk", "LayerOutput", "LayerState"]


class Chunk(NamedTuple):
    """What goes into a layer in one step.

    Attributes
    ----------
    query
        (batch, seq, heads, head_dim).
    key, value
        (batch, seq, kv_heads, dim), without positions applied.
    position
        int32, (batch, seq); None counts on from the entries read so far.
    valid
        Boolean, (batch, seq); None = all real.
    carry
        (batch, seq, carry_dim): the residual stream, to come out with its query; or None.
    document
        int32, (batch, seq): attention stays within a document; or None.
    metadata
        Anything (batch, seq, ...), nested, to come out with its query; or None.
    query_score
        (batch, seq): for a Q memory that does not evict in order.
    """

    query: Array
    key: Array
    value: Array
    position: Array | None = None
    valid: Array | None = None
    carry: Array | None = None
    document: Array | None = None
    metadata: Any = None
    query_score: Array | None = None


class LayerOutput(NamedTuple):
    """What comes out of a layer: N positions late, only the valid ones real.

    ``value`` is (batch, seq, heads, value_dim), zeros where not valid; the others belong to the
    same positions. ``trace`` is None unless the layer traces.
    """

    value: Array
    carry: Array | None
    position: Array
    valid: Array
    document: Array | None
    metadata: Any
    trace: StepTrace | None


class LayerState(NamedTuple):
    """What a layer remembers: the K/V memory and the waiting queries (None without them)."""

    kv: KeyValueState
    queue: DataOnlyState | None


class _Waiting(NamedTuple):
    """Queries ready to attend; ``data`` is (query, carry, document, metadata)."""

    data: Any
    position: Array
    valid: Array


@dataclass(frozen=True)
class AttendreLayer:
    """Attention over a memory of fixed size, with queries that wait for their future.

    Parameters
    ----------
    kv_memory
        M entries of keys and values.
    q_memory
        N waiting queries; None attends at once. N must be smaller than M, half of it is a good
        choice.
    top_k
        How many entries each query and head retrieves; None = all.
    causal
        Attend only to positions at or before the query's.
    encoding
        Position scheme.
    trace
        Record in each step what was inserted and evicted, and why.

    Notes
    -----
    Laws: the delay is exactly N; with N and M at least the length of the input and everything
    flushed, the output is that of full bidirectional attention; with N = 0, M at least the
    length and ``causal``, that of causal attention; `drain` = `flush`. Padding changes nothing:
    it neither enters the memories nor pushes queries out, so rows of a batch may end at
    different times.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()), at.DataOnlyMemory(4))
    >>> state = layer.init(batch=1, heads=2, kv_heads=1, head_dim=4)
    >>> chunk = at.Chunk(*(np.ones((1, 3, n, 4), dtype=np.float32) for n in (2, 1, 1)))
    >>> positions = []
    >>> for _ in range(3):
    ...     state, out = layer.step(state, chunk)
    ...     positions += out.position[out.valid].tolist()
    >>> state, rest = layer.flush(state)
    >>> positions, rest.position[rest.valid].tolist()
    ([0, 1, 2, 3, 4], [5, 6, 7, 8])
    """

    kv_memory: KeyValueMemory
    q_memory: DataOnlyMemory | None = None
    top_k: int | None = None
    causal: bool = False
    encoding: Encoding = NoPosition()
    trace: bool = False

    def __post_init__(self) -> None:
        _check_layer(self)

    @property
    def delay(self) -> int:
        """N: how many positions late the output comes."""
        return 0 if self.q_memory is None else self.q_memory.size

    # ---------------------------------------------------------------- states

    def init(
        self,
        batch: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int = 64,
        carry_dim: int | None = None,
        xp: Namespace | str | Backend = "numpy",
        dtype: Any = None,
        device: Any = None,
        *,
        value_dim: int | None = None,
        documents: bool = False,
        metadata: Any = None,
        chunk: int = 0,
    ) -> LayerState:
        """Make an empty state.

        Parameters
        ----------
        batch, heads, kv_heads, head_dim
            Rows, query heads, K/V heads (as many by default), width of a head.
        carry_dim
            Width of the residual stream that waits with the queries; None = there is none.
        xp, dtype, device, value_dim, chunk
            As in `KeyValueMemory.init`.
        documents
            Chunks will bring document ids.
        metadata
            Nested arrays (batch, any, ...) that show what chunks will bring.
        """
        found = resolve(xp)
        kind = checks.dtype_named(found.xp, dtype)
        ids = found.xp.zeros((batch, 1), dtype=found.xp.int32, device=device)
        kv = self.kv_memory.init(
            batch, kv_heads or heads, head_dim, found, kind, device,
            value_dim=value_dim, aux={"document": ids} if documents else None, chunk=chunk,
        )  # fmt: skip
        if self.q_memory is None:
            return LayerState(kv, None)

        def shown(*rest: int) -> Array:
            return found.xp.zeros((batch, 1, *rest), dtype=kind, device=device)

        example = (
            shown(heads, head_dim),
            None if carry_dim is None else shown(carry_dim),
            ids if documents else None,
            metadata,
        )
        return LayerState(kv, self.q_memory.init(example))

    def reset(self, state: LayerState, rows: Array) -> LayerState:
        """Forget single rows, e.g. where a new document begins; ``rows`` is boolean, (batch,).

        Queries that still wait in these rows are dropped: flush first to have their outputs.
        """
        queue = state.queue
        if self.q_memory is not None and queue is not None:
            queue = self.q_memory.reset(queue, rows)
        return LayerState(self.kv_memory.reset(state.kv, rows), queue)

    def reorder(self, state: LayerState, index: Array) -> LayerState:
        """Take row ``index[i]`` as row i, for beam search."""
        return reorder_rows("AttendreLayer.reorder", state, index)

    # ---------------------------------------------------------------- the paper's operations

    def step(
        self,
        state: LayerState,
        chunk: Chunk,
        *,
        encoding_params: Any = None,
        donate: bool = False,
    ) -> tuple[LayerState, LayerOutput]:
        """Read one chunk; the queries of N positions ago attend.

        The order is the paper's: queries enter the Q memory and the oldest come out; keys and
        values enter the K/V memory, which evicts down to M; the queries that came out attend to
        what survived; the scores are updated.

        Parameters
        ----------
        encoding_params
            Learned arrays of the encoding, such as T5's table.
        donate
            The caller will not use ``state`` again.
        """
        where = "AttendreLayer.step"
        self._check_state(where, state)
        checks.shape(
            where, "key", chunk.key, "batch, seq, heads, head_dim",
            (state.kv.key.shape[0], None, *state.kv.key.shape[1:4:2]),
            "Split the heads before the step.",
        )  # fmt: skip
        self._warn_of_refusals(chunk)
        chunk = self._placed(state, chunk)
        document = None if chunk.document is None else {"document": chunk.document}
        queue, waiting = self._wait(state, chunk, donate)
        entries = (chunk.key, chunk.value, chunk.position, chunk.valid)
        record = None
        if self.trace:
            kv, evicted = self.kv_memory.insert(state.kv, *entries, aux=document, donate=donate)
            record = trace_step(self.kv_memory, state.kv, kv, chunk.position, chunk.valid, evicted)
        else:
            kv = self.kv_memory.store(state.kv, *entries, aux=document, donate=donate)
        kv, output = self._attend(kv, waiting, encoding_params, record)
        return LayerState(kv, queue), output

    def flush(
        self, state: LayerState, *, encoding_params: Any = None
    ) -> tuple[LayerState, LayerOutput]:
        """Let all waiting queries attend in one extra step: the N residual positions, in order.

        Rows with fewer than N waiting queries have invalid entries in front. Without a Q memory
        nothing waits, and the output has no positions.
        """
        self._check_state("AttendreLayer.flush", state)
        state, outputs = self.empty_queue(state, max(self.delay, 1), encoding_params)
        return state, self._joined(state, outputs)

    def drain(
        self, state: LayerState, chunk_length: int, *, encoding_params: Any = None
    ) -> tuple[LayerState, LayerOutput]:
        """Do what `flush` does, ``chunk_length`` queries at a time, in less memory.

        Nothing enters the K/V memory meanwhile.
        """
        checks.whole_number(
            "AttendreLayer.drain", "chunk_length", chunk_length, least=1,
            hint="The chunk length of the stream is a good choice.",
        )  # fmt: skip
        self._check_state("AttendreLayer.drain", state)
        state, outputs = self.empty_queue(state, chunk_length, encoding_params)
        return state, self._joined(state, outputs)

    def decoding(
        self, state: LayerState, room: int | None = None
    ) -> tuple[AttendreLayer, LayerState]:
        """Switch from reading to decoding: no Q memory, causal, the memory stays.

        Parameters
        ----------
        state
            After `flush` or `drain`; queries that still wait are dropped.
        room
            Slots of a separate cache for generated entries: what was read is kept for good and
            generated entries are first in, first out among themselves. None puts generated
            entries into the memory itself, where they compete.

        Returns
        -------
        layer, state
            A layer without delay, and its state.
        """
        self._check_state("AttendreLayer.decoding", state)
        kv = state.kv
        if room is None:
            return replace(self, q_memory=None, causal=True), LayerState(kv, None)
        checks.whole_number(
            "AttendreLayer.decoding", "room", room, least=1,
            hint="It counts generated entries; None puts them into the memory itself.",
        )  # fmt: skip
        if self.kv_memory.present == "visible":
            kv, _ = self.kv_memory.settle(kv)
        slots = max(self.kv_memory.size + room, kv.key.shape[2])
        if slots > kv.key.shape[2]:
            kv = grown(kv, slots - kv.key.shape[2])
        memory = replace(
            self.kv_memory,
            size=slots,
            policy=FIFO(),
            present="compete",
            protect_recent=0,
            pin=(),
        )
        kv = kv._replace(pinned=kv.valid)
        layer = replace(self, kv_memory=memory, q_memory=None, causal=True)
        return layer, LayerState(kv, None)

    # ---------------------------------------------------------------- inside

    def _check_state(self, where: str, state: LayerState) -> None:
        if not isinstance(state, LayerState):
            raise StateError(
                f"{where}: the state is a {type(state).__name__}, expected a LayerState. Pass "
                "what init or the last call of this layer returned."
            )
        if (state.queue is None) != (self.q_memory is None):
            raise StateError(
                f"{where}: the state has {'no' if state.queue is None else 'a'} Q memory, but "
                f"this layer has {'none' if self.q_memory is None else 'one'}. Make the state "
                "with this layer's init."
            )

    def _warn_of_refusals(self, chunk: Chunk) -> None:
        size, length = self.kv_memory.size, chunk.key.shape[1]
        if self.kv_memory.present == "compete" and length > size:
            warnings.warn(
                f"the chunk has {length} positions but the memory holds {size}: of a full chunk "
                f"at least {length - size} entries are refused before any query attends to "
                f"them. Read chunks of at most {size}, or enlarge the memory.",
                ChunkTooLongWarning,
                stacklevel=3,
            )

    def _placed(self, state: LayerState, chunk: Chunk) -> Chunk:
        """Give every position of the chunk a number and a flag, if the caller gave none."""
        valid = check_flags(
            "AttendreLayer.step", "valid", chunk.valid, tuple(chunk.key.shape[:2]), chunk.key,
            default=True,
        )  # fmt: skip
        position = chunk.position
        if position is None:
            if chunk.valid is None:
                number = numbers(chunk.key.shape[1], chunk.key)
            else:
                number = running_count(valid) - 1
            position = state.kv.clock[:, None] + number
        return chunk._replace(position=position, valid=valid)

    def _wait(
        self, state: LayerState, chunk: Chunk, donate: bool
    ) -> tuple[DataOnlyState | None, _Waiting]:
        """Exchange the chunk's queries for those that waited long enough."""
        data = (chunk.query, chunk.carry, chunk.document, chunk.metadata)
        if self.q_memory is None or state.queue is None:
            return None, _Waiting(data, chunk.position, chunk.valid)
        queue, out = self.q_memory.insert(
            state.queue,
            data,
            chunk.position,
            chunk.valid,
            score=chunk.query_score,
            donate=donate,
        )
        return queue, _Waiting(*out)

    def _attend(
        self,
        kv: KeyValueState,
        waiting: _Waiting,
        encoding_params: Any,
        record: StepTrace | None,
    ) -> tuple[KeyValueState, LayerOutput]:
        query, carry, document, metadata = waiting.data
        kv, value = self.kv_memory.attend(
            kv,
            query,
            waiting.position,
            waiting.valid,
            self.top_k,
            self.causal,
            encoding=self.encoding,
            encoding_params=encoding_params,
            document=document,
        )
        return kv, LayerOutput(
            value, carry, waiting.position, waiting.valid, document, metadata, record
        )

    def empty_queue(
        self, state: LayerState, length: int, encoding_params: Any = None
    ) -> tuple[LayerState, list[LayerOutput]]:
        """Let the waiting queries attend, ``length`` at a time; the outputs one by one."""
        if self.q_memory is None or state.queue is None:
            return state, []
        rest = self.q_memory.get_all(state.queue)
        kv, outputs = state.kv, []
        for start in range(0, self.q_memory.size, length):
            part = slice(start, min(start + length, self.q_memory.size))

            def cut(leaf: Array, part: slice = part) -> Array:
                return leaf[:, part, ...]

            waiting: _Waiting = tree_map(cut, _Waiting(*rest))
            kv, output = self._attend(kv, waiting, encoding_params, None)
            outputs.append(output)
        xp = backend_of(kv.key).xp
        emptied = self.q_memory.reset(state.queue, xp.ones_like(kv.clock) > 0)
        return LayerState(kv, emptied._replace(clock=state.queue.clock)), outputs

    def _joined(self, state: LayerState, outputs: list[LayerOutput]) -> LayerOutput:
        if not outputs:
            return self._nothing(state)
        xp = backend_of(state.kv.key).xp
        joined: LayerOutput = tree_map(
            lambda *parts: parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=1),
            *outputs,
        )
        return joined

    def _nothing(self, state: LayerState) -> LayerOutput:
        """Return the output of a layer in which no query waits: no positions at all."""
        xp = backend_of(state.kv.key).xp
        batch, heads, _, dim = state.kv.value.shape
        device = backend_of(state.kv.key).device_of(state.kv.key)
        none = xp.zeros((batch, 0), dtype=xp.int32, device=device)
        value = xp.zeros((batch, 0, heads, dim), dtype=state.kv.value.dtype, device=device)
        return LayerOutput(value, None, none, none > 0, None, None, None)


def _check_layer(layer: AttendreLayer) -> None:
    where = "AttendreLayer"
    if not isinstance(layer.kv_memory, KeyValueMemory):
        raise ConfigError(f"{where}: kv_memory is {layer.kv_memory!r}, expected a KeyValueMemory.")
    if layer.q_memory is not None and not isinstance(layer.q_memory, DataOnlyMemory):
        raise ConfigError(
            f"{where}: q_memory is {layer.q_memory!r}, expected a DataOnlyMemory, or None to "
            "attend at once."
        )
    size = layer.kv_memory.size
    if layer.delay >= size:
        raise ConfigError(
            f"{where}: the Q memory holds N = {layer.delay} and the K/V memory M = {size}, "
            "expected N < M. A query that waits for N positions would find its own and all "
            f"earlier keys evicted, and attend to its future alone. Use N = {max(size // 2, 1)}, "
            "half of M."
        )
    if layer.top_k is not None:
        checks.whole_number(where, "top_k", layer.top_k, least=1, hint="None attends to all.")
        if layer.top_k > size:
            raise ConfigError(
                f"{where}: top_k is {layer.top_k}, but the memory has {size} slots. Use "
                "top_k=None to attend to all."
            )
