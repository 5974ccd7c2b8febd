"""The Attendre layer: wait to attend (paper, section 3.2).

::

    q chunk ──► Q memory (N) ──► queries of N positions ago ──┐
                                                              ├──► attention ──► output, N late
    k, v chunk ──► K/V memory (M) ──► what survived ──────────┘

A query waits until N later positions have been read, so it attends to its past *and* to up to N
positions of its future. What belongs to the query waits with it: the residual stream (`carry`),
its position, validity and metadata.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core import checks
from attendre_core.backend import Array, backend_of
from attendre_core.errors import ChunkTooLongWarning, StateError
from attendre_core.joint.beside import Beside
from attendre_core.layer.decoding import decoding
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.spec import LayerSpec
from attendre_core.layer.trace import trace_step
from attendre_core.memory.queue import DataOnlyState
from attendre_core.probes.probing import ProbedLayer
from attendre_core.tiers.tiers import Tiers
from attendre_core.tree import tree_map

__all__ = ["AttendreLayer"]


class _Waiting(NamedTuple):
    """Queries ready to attend; ``data`` is (query, carry, document, metadata)."""

    data: Any
    position: Array
    valid: Array | None


@dataclass(frozen=True)
class AttendreLayer(ProbedLayer, LayerSpec):
    """Attention over a memory of fixed size, with queries that wait for their future.

    Parameters
    ----------
    kv_memory
        M entries of keys and values; `Tiers`, if what they evict goes on to other memories.
    q_memory
        N waiting queries; None attends at once. N must be smaller than M; M / 2 is a good choice.
    top_k
        How many entries each query and head retrieves; None = all.
    causal
        Attend only to entries at or before the query's position.
    encoding
        Position scheme.
    trace
        Record what each step inserted and evicted, and why; of `Tiers`, what left the last.
    evicted
        Hand out what each step evicts, as ``LayerOutput.evicted``.

    Notes
    -----
    Laws: the delay is exactly N. If N and M are at least the length of the input, the output
    after `flush` is that of full bidirectional attention; if N = 0, M is at least the length and
    ``causal`` is set, that of causal attention. `drain` gives the same as `flush`. Padding changes
    nothing: it neither enters the memories nor pushes queries out, so the rows of a batch may end
    at different times.

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

    # ---------------------------------------------------------------- the paper's operations

    def step(
        self,
        state: LayerState,
        chunk: Chunk,
        *,
        encoding_params: Any = None,
        policy_params: Any = None,
        donate: bool = False,
    ) -> tuple[LayerState, LayerOutput]:
        """Read one chunk; the queries of N positions ago attend.

        In the paper's order (specification, reading 1): the queries enter the Q memory and the
        oldest come out; the keys and values enter the K/V memory, which evicts down to M; the
        queries that came out attend to the survivors; the scores are updated.

        Parameters
        ----------
        encoding_params
            Learned arrays of the encoding, such as T5's table.
        policy_params
            Arrays that the K/V memory's policy needs, if any; of `Tiers`, `TiersParameters`.
        donate
            The caller will not use ``state`` again, so its arrays may be overwritten.
        """
        where = "AttendreLayer.step"
        self._check_state(where, state)
        batch, heads, _, dim = state.kv.key.shape
        checks.heads(where, "key", chunk.key, (batch, None, heads, dim))
        self._warn_of_refusals(chunk)
        given = (state, chunk, encoding_params, policy_params, donate)
        run = backend_of(state.kv.key).run_step
        found = NotImplemented if run is None else run(self, self._step, *given)
        return self._step(*given) if found is NotImplemented else found

    def _step(
        self, state: LayerState, chunk: Chunk, *options: Any
    ) -> tuple[LayerState, LayerOutput]:
        encoding_params, policy_params, donate = options
        entries = (chunk.key, chunk.value, chunk.position, chunk.valid)
        chunk = self._placed(state, chunk)
        document = None if chunk.document is None else {"document": chunk.document}
        queue, waiting = self._wait(state, chunk)
        more = {"aux": document, "policy_params": policy_params, "score": chunk.score}
        record: Any = None
        evicted: Any = None
        if self.trace or self.evicted:
            donate = donate and not self.trace
            kv, evicted = self.kv_memory.insert(state.kv, *entries, **more, donate=donate)
        else:
            kv = self.kv_memory.store(state.kv, *entries, **more, donate=donate)
        if self.trace:
            place = (chunk.position, _flags(chunk.position, chunk.valid))
            last = (self.kv_memory, state.kv, kv, policy_params)
            if isinstance(self.kv_memory, Tiers):
                last = self.kv_memory.evicting(*last[1:])
            record = trace_step(*last, *place, evicted)
        kv, output = self._attend(kv, waiting, encoding_params, policy_params, chunk.beside, record)
        output = output._replace(evicted=evicted) if self.evicted else output
        return LayerState(kv, queue), output

    def flush(
        self, state: LayerState, *,
        encoding_params: Any = None, policy_params: Any = None, beside: Beside | None = None,
    ) -> tuple[LayerState, LayerOutput]:  # fmt: skip
        """Let all waiting queries attend in one extra step: the last N positions, in order.

        Rows with fewer than N waiting queries start with invalid outputs. Without a Q memory
        no query waits, and the output is empty. ``beside`` is that of a `Chunk`.
        """
        self._check_state("AttendreLayer.flush", state)
        given = (encoding_params, policy_params, beside)
        return self._joined(*self.empty_queue(state, max(self.delay, 1), *given))

    def drain(
        self, state: LayerState, chunk_length: int, *,
        encoding_params: Any = None, policy_params: Any = None, beside: Beside | None = None,
    ) -> tuple[LayerState, LayerOutput]:  # fmt: skip
        """Like `flush`, but ``chunk_length`` queries at a time, which takes less memory.

        Nothing enters the K/V memory in the meantime.
        """
        checks.whole_number(
            "AttendreLayer.drain", "chunk_length", chunk_length, least=1,
            hint="The chunk length of the stream is a good choice.",
        )  # fmt: skip
        self._check_state("AttendreLayer.drain", state)
        given = (encoding_params, policy_params, beside)
        return self._joined(*self.empty_queue(state, chunk_length, *given))

    def decoding(
        self, state: LayerState, room: int | None = None, *, policy_params: Any = None
    ) -> tuple[AttendreLayer, LayerState]:
        """Switch from reading to decoding; see `attendre_core.layer.decoding.decoding`."""
        self._check_state("AttendreLayer.decoding", state)
        return decoding(self, state, room, policy_params)

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
        """Fill in positions where the caller gave none."""
        if chunk.valid is not None:
            lead = chunk.key.shape[0], chunk.key.shape[1]
            checks.flags("AttendreLayer.step", "valid", chunk.valid, lead, chunk.key, default=True)
        if chunk.position is not None:
            return chunk
        return chunk._replace(position=checks.numbered(state.kv.clock, chunk.valid, chunk.key))

    def _wait(self, state: LayerState, chunk: Chunk) -> tuple[DataOnlyState | None, _Waiting]:
        """Exchange the chunk's queries for those that have waited long enough."""
        data = (chunk.query, chunk.carry, chunk.document, chunk.metadata)
        if self.q_memory is None or state.queue is None:
            return None, _Waiting(data, chunk.position, chunk.valid)
        place = (chunk.position, chunk.valid)
        queue, out = self.q_memory.insert(state.queue, data, *place, score=chunk.query_score)
        return queue, _Waiting(*out)

    def _attend(
        self, kv: Any, waiting: _Waiting, encoding_params: Any, policy_params: Any,
        beside: Beside | None, record: Any,
    ) -> tuple[Any, LayerOutput]:  # fmt: skip
        query, carry, document, metadata = waiting.data
        given = (query, waiting.position, waiting.valid, self.top_k, self.causal)
        params = {"encoding_params": encoding_params, "policy_params": policy_params}
        kv, value = self.kv_memory.attend(
            kv, *given, encoding=self.encoding, **params, document=document, beside=beside
        )
        valid = _flags(waiting.position, waiting.valid)
        return kv, LayerOutput(value, carry, waiting.position, valid, document, metadata, record)

    def empty_queue(
        self, state: LayerState, length: int,
        encoding_params: Any = None, policy_params: Any = None, beside: Beside | None = None,
    ) -> tuple[LayerState, list[LayerOutput]]:  # fmt: skip
        """Let the waiting queries attend, ``length`` at a time; return one output per part."""
        if self.q_memory is None or state.queue is None:
            return state, []
        rest = self.q_memory.get_all(state.queue)
        kv, outputs = state.kv, []
        for start in range(0, self.q_memory.size, length):
            part = slice(start, min(start + length, self.q_memory.size))

            def cut(leaf: Array, part: slice = part) -> Array:
                return leaf[:, part, ...]

            waiting: _Waiting = tree_map(cut, _Waiting(*rest))
            kv, output = self._attend(kv, waiting, encoding_params, policy_params, beside, None)
            outputs.append(output)
        xp = backend_of(kv.key).xp
        emptied = self.q_memory.reset(state.queue, xp.ones_like(kv.clock) > 0)
        return LayerState(kv, emptied._replace(clock=state.queue.clock)), outputs

    def _joined(
        self, state: LayerState, outputs: list[LayerOutput]
    ) -> tuple[LayerState, LayerOutput]:
        if not outputs:
            return state, self._nothing(state)
        xp = backend_of(state.kv.key).xp
        joined: LayerOutput = tree_map(
            lambda *parts: parts[0] if len(parts) == 1 else xp.concat(list(parts), axis=1),
            *outputs,
        )
        return state, joined

    def _nothing(self, state: LayerState) -> LayerOutput:
        """Return the empty output of a layer in which no query waits."""
        xp = backend_of(state.kv.key).xp
        batch, heads, _, dim = state.kv.value.shape
        device = backend_of(state.kv.key).device_of(state.kv.key)
        none = xp.zeros((batch, 0), dtype=xp.int32, device=device)
        value = xp.zeros((batch, 0, heads, dim), dtype=state.kv.value.dtype, device=device)
        return LayerOutput(value, None, none, none > 0, None, None, None)


def _flags(position: Array, valid: Array | None) -> Array:
    """Return which positions are valid; without flags, all are."""
    return position == position if valid is None else valid
