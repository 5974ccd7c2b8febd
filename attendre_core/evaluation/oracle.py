"""Oracle memories: read everything with full attention, and choose what to keep only at the end.

Papers on eviction mostly report this: the whole context is read with a full cache, all queries
attend to everything before them, and only then M entries per layer are kept, by the scores that
this read gave them. It is no memory of fixed size, so `attendre_core.load` does not offer it; it
says how good a policy's ranking is when nothing was lost on the way.

::

    tokens ─► full attention, once ─► queries, keys and values of every layer
                                        │ policy A observes all of it ─► ranks, keeps M
                                        │ policy B observes all of it ─► ranks, keeps M
                                        ▼
                                  question and answer are read beside the M entries
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Flow, step_block
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import Stack
from attendre_core.memory.attend import observe, read
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.state import KeyValueState
from attendre_core.policies import Policy
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.blocks import ModelBlock
from attendre_core.zoo.decode_cache import can_cache
from attendre_core.zoo.memories import encoding_of, full_stack, is_far, memory_stack
from attendre_core.zoo.model import Model
from attendre_core.zoo.reader import Reader, States
from attendre_core.zoo.tokens import last_rows, padded
from attendre_core.zoo.writer import Writer

__all__ = ["FullRead", "FullReads", "Kept", "keep_best"]


class _Recorded:
    """A block that keeps what it projects."""

    def __init__(self, block: ModelBlock) -> None:
        self._block = block

    def __getattr__(self, name: str) -> Any:
        return getattr(self._block, name)

    def project(self, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Project, and keep the result as ``projected``."""
        self.projected = self._block.project(x, position)
        return self.projected

    def finish(self, attended: Array, carry: Array) -> Array:
        """Finish as the real block does."""
        return self._block.finish(attended, carry)


class _Piece(NamedTuple):
    """A chunk: its positions, which of them are real, and what each layer projected."""

    position: Array
    valid: Array
    projected: list[tuple[Array, Array, Array]]


class FullRead:
    """Rows that a causal decoder has read with full attention, for any number of policies.

    All rows end with the last chunk, so the last chunk has as many queries as there are: the
    window that policies such as SnapKV look through.

    Parameters
    ----------
    model
        A causal decoder; its own memory setting is ignored.
    rows
        Token ids of each row, at least one each.
    chunk
        S: policies observe the queries of this many positions at a time.

    Attributes
    ----------
    lengths
        Number of tokens of each row.
    seconds
        CPU seconds that the read took.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]], chunk: int) -> None:
        if model.architecture.kind != "decoder" or not model.causal:
            raise ConfigError(
                "oracle: only a causal decoder can read everything before it forgets; give one, "
                "or leave +oracle and --mode out."
            )
        if min(len(row) for row in rows) < 1:
            raise ConfigError("oracle: a row has no tokens, expected at least one.")
        began = time.process_time()
        self.model, self.chunk = model, chunk
        self.lengths = [len(row) for row in rows]
        #: The reader is used for its blocks; its memory is never filled.
        self._reader = _reader(model, MemoryConfig(policy=Policy(), kv_size=chunk, chunk=chunk))
        self._pieces: list[_Piece] = []
        self._read(rows)
        self.seconds = time.process_time() - began

    def kept(self, memory: MemoryConfig) -> Kept:
        """Let a policy observe the whole read, and keep the entries that it ranks highest.

        Parameters
        ----------
        memory
            Size, policy and protection of the entries that stay. Each layer keeps as many as its
            memory holds; queries do not wait.
        """
        return self.kept_at(memory, [len(self._pieces)])[0]

    def kept_at(self, memory: MemoryConfig, stops: Sequence[int]) -> list[Kept]:
        """Do what `kept` does after each of several numbers of chunks, in ascending order."""
        # A recommended system becomes what it is in this model.
        memory = self.model.with_memory(memory).memory or memory
        if memory.q_size:
            raise ConfigError(
                f"oracle: q_size is {memory.q_size}, but no query waits in a read with full "
                "attention. Leave +wait= out."
            )
        if memory.decode == "inside":
            raise ConfigError(
                "oracle: decode is 'inside', but after a read with full attention nothing is "
                "evicted any more. Leave +inside out."
            )
        began = time.process_time()
        part, library = self.model.reading_part, self.model.library
        far = is_far(part, max(self.lengths))
        stack = memory_stack(part, memory, library, causal=True, far=far)
        layers = [self._states(stack.layers[i], i, stops) for i in range(part.layers)]
        seconds = self.seconds + time.process_time() - began
        return [
            Kept(self.model, memory, stack, states, self._ends(stop), seconds)
            for stop, states in zip(stops, zip(*layers, strict=True), strict=True)
        ]

    # ---------------------------------------------------------------- inside

    def _read(self, rows: Sequence[Sequence[int]]) -> None:
        """Read chunk by chunk with memories that hold everything; rows end together."""
        model, reader = self.model, self._reader
        longest = max(self.lengths)
        length = -(-longest // self.chunk) * self.chunk
        tokens, valid = np.zeros((2, len(rows), length), dtype=np.int32)
        for number, row in enumerate(rows):
            tokens[number, length - len(row) :], valid[number, length - len(row) :] = row, 1
        position = np.where(valid, np.cumsum(valid, axis=1) - 1, 0).astype(np.int32)
        stack = full_stack(model.reading_part, longest, model.library)
        far = is_far(model.reading_part, longest)
        layers = [
            replace(layer, encoding=encoding_of(model.reading_part, i, "clamp", far))
            for i, layer in enumerate(stack.layers)
        ]
        part = model.reading_part
        states = list(
            stack.init(
                batch=len(rows), heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
                carry_dim=part.dim, xp=model.library, dtype=model.dtype, device=model.device,
                chunk=self.chunk,
            )
        )  # fmt: skip
        for start in range(0, length, self.chunk):
            columns = slice(start, start + self.chunk)
            at = model.array(position[:, columns].copy())
            real = model.array(valid[:, columns].astype(bool))
            x = part.embed(model.reading_params, model.array(tokens[:, columns].copy()), at)
            flow, projected = Flow(x, at, real, None, None), []
            for i, layer in enumerate(layers):
                block = _Recorded(reader.blocks[i])
                states[i], flow, _ = step_block(layer, block, states[i], flow, donate=True)
                projected.append(block.projected)
            self._pieces.append(_Piece(at, real, projected))

    def _states(self, layer: AttendreLayer, number: int, stops: Sequence[int]) -> list[LayerState]:
        """Return what the policy of one layer keeps after each number of chunks."""
        part, memory, block = self.model.reading_part, layer.kv_memory, self._reader.blocks[number]
        size = max(memory.size, max(self.lengths))
        whole = replace(memory, size=size, present="compete", retrieval="threshold")
        state = whole.init(
            batch=len(self.lengths), kv_heads=part.kv_heads, head_dim=part.head_dim,
            xp=self.model.library, dtype=self.model.dtype, device=self.model.device,
        )  # fmt: skip
        params = getattr(block, "policy_params", None)
        kept = []
        for done in range(stops[-1] + 1):
            if done in stops:
                kept.append(LayerState(keep_best(memory, state), None))
            if done == stops[-1]:
                break
            position, valid, projected = self._pieces[done]
            query, key, value = projected[number]
            state = whole.store(
                state, key, value, position, valid, policy_params=params, donate=True
            )
            # The output of the attention is known, so only the policy's view is computed.
            reading = read(
                "oracle", state, memory.scale, None, None, query, position, valid, True,
                layer.encoding, block.encoding_params, params,
            )  # fmt: skip
            state = observe("oracle", memory.policy, state, reading.attention)
        return kept

    def _ends(self, stop: int) -> list[int]:
        """Return how many tokens of each row the first chunks hold."""
        unread = (len(self._pieces) - stop) * self.chunk
        return [max(length - unread, 0) for length in self.lengths]


class FullReads:
    """Reads of the same rows with full attention, one for each chunk length that is asked for.

    Parameters are those of `FullRead`.
    """

    def __init__(self, model: Model, rows: Sequence[Sequence[int]]) -> None:
        self._model, self._rows = model, rows
        self._reads: dict[int, FullRead] = {}

    def __getitem__(self, chunk: int) -> FullRead:
        if chunk not in self._reads:
            self._reads[chunk] = FullRead(self._model, self._rows, chunk)
        return self._reads[chunk]


class Kept(NamedTuple):
    """What was kept of rows: M entries per layer, from which reading and writing continue.

    Attributes
    ----------
    states
        The entries of each layer, in the order of the input.
    lengths
        Number of tokens of each row that were read.
    seconds
        CPU seconds of the full read and of what the policy observed.
    """

    model: Model
    memory: MemoryConfig
    stack: Stack
    states: States
    lengths: list[int]
    seconds: float

    def following(self, rows: Sequence[Sequence[int]], room: int) -> tuple[Writer, Array]:
        """Read more tokens beside what was kept; return a writer and the next-token logits.

        Nothing is evicted any more: these tokens and up to ``room`` written ones have slots of
        their own, as with ``decode="separate"``.

        Parameters
        ----------
        rows
            Token ids of each row, at least one each.
        room
            Maximum number of tokens that will be written.
        """
        model, reader = self.model, _reader(self.model, self.memory)
        tokens, valid = padded([list(row) for row in rows])
        lengths = np.asarray(self.lengths, dtype=np.int32)
        counts = valid.sum(axis=1, dtype=np.int32)
        stack, states = self.stack.decoding(self.states, tokens.shape[1] + room)
        places = lengths[:, None] + np.cumsum(valid, axis=1, dtype=np.int32) - 1
        at = model.array(np.where(valid, places, 0).astype(np.int32))
        x = reader.part.embed(reader.params, model.array(tokens.astype(np.int32)), at)
        states, out = stack.step(states, reader.blocks, x, at, model.array(valid))
        hidden = reader.part.final(reader.params, out.x)
        last = last_rows(hidden, model.array(counts.astype(np.int64) - 1))
        logits = model.architecture.logits(model.params, last[:, None, :])[:, 0, :]
        writer = Writer(
            model, reader.part, reader.params, reader.blocks, stack, states, lengths + counts, room,
            cached=can_cache(stack.layers),
        )  # fmt: skip
        return writer, logits

    def probe(self, rows: Sequence[Sequence[int]]) -> Array:
        """Return the logits after each of several tokens, (batch, n, vocabulary), in NumPy."""
        model, reader = self.model, _reader(self.model, self.memory)
        tokens, valid = padded([list(row) for row in rows])
        stack, states = self.stack.decoding(self.states, tokens.shape[1])
        writer = Writer(
            model, reader.part, reader.params, reader.blocks, stack, states,
            np.asarray(self.lengths), tokens.shape[1],
        )  # fmt: skip
        return writer.probe(tokens, valid)


def keep_best(memory: KeyValueMemory, state: KeyValueState) -> KeyValueState:
    """Keep the ``memory.size`` entries that a memory ranks highest, in as many slots.

    Sinks, pinned and recent entries stay as in the memory itself.

    Parameters
    ----------
    memory
        The memory that decides.
    state
        Of a memory with the same policy and at least as many slots.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> large, small = (at.KeyValueMemory(size, at.LFA(), protect_recent=1) for size in (4, 2))
    >>> chunk = np.ones((1, 4, 1, 2), dtype=np.float32)
    >>> score = np.asarray([[1.0, 3.0, 2.0, 0.0]], dtype=np.float32)
    >>> state, _ = large.insert(large.init(like=chunk), chunk, chunk, score=score)
    >>> keep_best(small, state).position.tolist()
    [[1, 3]]
    """
    settled, _ = replace(memory, present="visible").settle(state)
    xp = namespace_of(settled.key)
    slots = settled.key.shape[2]
    order = ops.lowest(xp.astype(settled.valid, settled.score.dtype), settled.arrival, slots)
    index = order[..., slots - memory.size :]
    axis = index.ndim - 1

    def take(record: Array) -> Array:
        return ops.gather_slots(record, index, axis=axis)

    names = ("position", "valid", "score", "arrival", "pinned", "observed")
    return settled._replace(
        key=ops.gather_slots(settled.key, index, axis=2),
        value=ops.gather_slots(settled.value, index, axis=2),
        aux=tree_map(take, settled.aux),
        policy_state=None,  # Nothing is observed any more.
        **{name: take(getattr(settled, name)) for name in names},
    )


def _reader(model: Model, memory: MemoryConfig) -> Reader:
    return Reader(
        model.reading_part, model.reading_params, memory, model.library, model.dtype, causal=True
    )
