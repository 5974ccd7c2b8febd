"""Write one token at a time against what was read.

::

    token ─► embed ─► layers: memories, or a cache of prepared keys ─► final ─► next-token logits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.checks import within_range
from attendre_core.errors import StateError
from attendre_core.layer.stack import Stack
from attendre_core.zoo.architectures.base import Architecture, EncoderDecoder, Params, Part
from attendre_core.zoo.blocks import (
    ModelBlock,
    blocks_of,
    compiled,
    crosses_of,
    ends_of,
    runs_eagerly,
)
from attendre_core.zoo.compiled_cache import CompiledCache
from attendre_core.zoo.decode_cache import DecodeCache, can_cache
from attendre_core.zoo.memories import full_stack
from attendre_core.zoo.outputs import KeepOutputs
from attendre_core.zoo.reader import Reader, States

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["Writer", "write_across", "write_after"]

Blocks = tuple[ModelBlock, ...]


class Memories:
    """Layers over their memories: a token is a chunk of one position.

    Parameters
    ----------
    stack, states
        From `Stack.decoding` or fresh.
    own
        Nobody else uses the states, so they may be overwritten.
    """

    def __init__(self, stack: Stack, states: States, *, own: bool) -> None:
        self.stack, self.states, self._own = stack, states, own

    def step(self, blocks: Blocks, x: Array, at: Array, real: Array, every: bool) -> Array:
        """Add one token per row; parameters as in `DecodeCache.step`."""
        self.states, out = self.stack.step(self.states, blocks, x, at, real, donate=self._own)
        self._own = True
        return out.x

    def probe(self, blocks: Blocks, x: Array, at: Array, real: Array) -> Array:
        """Return the output for several tokens, (batch, n, dim), without adding them."""
        return self.stack.step(self.states, blocks, x, at, real)[1].x

    def reorder(self, rows: Array) -> None:
        """Reorder rows: row ``rows[i]`` becomes row i."""
        self.states = self.stack.reorder(self.states, rows)
        self._own = True


class Writer:
    """A decoder in the middle of a text, one row per text.

    Tokens go in and logits come out on the device of the parameters. The host keeps positions and
    which rows go on for itself, and reads nothing.

    Parameters
    ----------
    model
        Turns hidden states into logits.
    part, params, blocks
        The decoder.
    stack, states
        Its layers after reading, and their states.
    position
        NumPy, (batch,): the position of the next token of each row.
    room
        Maximum number of tokens that will be written.
    cached
        Write against prepared keys, see `DecodeCache`.
    own
        Nobody else uses the states, so they may be overwritten.
    """

    def __init__(
        self,
        model: Model,
        part: Part,
        params: Params,
        blocks: Blocks,
        stack: Stack,
        states: States,
        position: Any,
        room: int,
        *,
        cached: bool = False,
        own: bool = False,
    ) -> None:
        self.model, self.part, self.params, self.blocks = model, part, params, blocks
        self.position = np.asarray(position, dtype=np.int32)
        within_range("generate", int(self.position.max(initial=0)) + room - 1)
        self._layers: Memories | DecodeCache | CompiledCache = Memories(stack, states, own=own)
        self._room, self._cached = room, cached
        self._embed, self._final = ends_of(model.library, part)
        self._next_logits, self._moved = _programs(model.library, model.architecture)
        #: On the device: the positions, and which rows go on, (batch, 1).
        self._at = model.array(self.position[:, None].copy())
        self._active = np.ones(len(self.position), dtype=bool)
        self._real = model.array(self._active[:, None])
        self.keeps: KeepOutputs | None = None
        self._written = 0
        #: The input that each row belongs to: its beams attend to the same encoder outputs.
        self._inputs = np.arange(len(self.position))

    def step(self, ids: Array, active: Any) -> Array:
        """Add a token to each active row, on the device.

        Parameters
        ----------
        ids
            int32, (batch,): on the device.
        active
            NumPy, (batch,): which rows get a token. It is sent to the device when it changes.

        Returns
        -------
        array
            Next-token logits, float32, (batch, vocabulary).
        """
        if not np.array_equal(active, self._active):
            self._active = np.array(active, dtype=bool)
            self._real = self.model.array(self._active[:, None])
        x = self._embed(self.params, ids[:, None], self._at)
        every = bool(self._active.all())
        layers, token = self._ready(), x
        x = layers.step(self.blocks, x, self._at, self._real, every)
        self._written += 1
        if self.keeps is not None and self._written == self.keeps.after:  # counts the start token
            held = cast(Memories, layers)
            self.blocks = self.keeps.kept(
                held.stack.layers, held.states, self.blocks, token, self._at, self._real
            )
        self._at = self._moved(self._at, self._real)
        self.position = self.position + self._active.astype(np.int32)
        return self._next_logits(self.model.params, self._final(self.params, x))

    def write(self, tokens: Any, active: Any) -> Any:
        """Do what `step` does, with token ids and logits in NumPy."""
        ids = self.model.array(np.asarray(tokens, dtype=np.int32))
        return np.asarray(self.model.backend.to_numpy(self.step(ids, active)))

    def probe(self, tokens: Any, valid: Any) -> Any:
        """Return the logits after each of several tokens, without writing them.

        Parameters
        ----------
        tokens, valid
            NumPy, (batch, n): token ids, and which of them are real.

        Returns
        -------
        array
            (batch, n, vocabulary) in NumPy.
        """
        if not isinstance(self._layers, Memories):
            raise StateError(
                "Writer.probe: tokens were written already, and the cache takes one token at a "
                "time. Call probe before the first one is written."
            )
        array = self.model.array
        places = self.position[:, None] + np.cumsum(valid, axis=1, dtype=np.int32) - 1
        at, real = array(np.where(valid, places, 0).astype(np.int32)), array(np.asarray(valid))
        x = self.part.embed(self.params, array(np.asarray(tokens, dtype=np.int32)), at)
        out = self._layers.probe(self.blocks, x, at, real)
        values = self.model.architecture.logits(
            self.model.params, self.part.final(self.params, out)
        )
        return np.asarray(self.model.backend.to_numpy(values), dtype=np.float32)

    def reorder(self, index: Any) -> None:
        """Reorder rows: row ``index[i]`` becomes row i."""
        index = np.asarray(index)
        rows = self.model.array(index.astype(np.int32))
        take = self.model.backend.xp.take
        self._ready().reorder(rows)
        self._at, self._real = take(self._at, rows, axis=0), take(self._real, rows, axis=0)
        self._active = self._active[index]
        inputs = self._inputs[index]
        if not np.array_equal(inputs, self._inputs):
            self.blocks = tuple(self._reordered(block, rows) for block in self.blocks)
        self._inputs, self.position = inputs, self.position[index]

    def _ready(self) -> Memories | DecodeCache | CompiledCache:
        """Return the layers; a cache is made before the first token."""
        if self._cached and isinstance(self._layers, Memories):
            held = self._layers
            kind = DecodeCache if runs_eagerly(self.model.library) else CompiledCache
            self._layers = kind(held.stack.layers, held.states, self._at, self._room)
        return self._layers

    def _reordered(self, block: ModelBlock, rows: Array) -> ModelBlock:
        if block.cross is None:
            return block
        key, value, valid = (self.model.backend.xp.take(a, rows, axis=0) for a in block.cross)
        return replace(block, cross=(key, value, valid))


def write_after(
    model: Model, reader: Reader, states: States, lengths: Any, hidden: Array, room: int
) -> tuple[Writer, Any]:
    """Return a writer that continues what a decoder has read, and the first logits, on the device.

    Parameters
    ----------
    reader, states, lengths
        The reader, its states, and the number of tokens read of each row, NumPy (batch,).
    hidden
        (batch, dim): of the last token of each row.
    room
        Maximum number of tokens that will be written.
    """
    inside = model.memory is not None and model.memory.decode == "inside"
    stack = reader.stack(int(np.max(lengths)) + room)
    stack, states = stack.decoding(states, None if inside else room)
    cached = not inside and can_cache(stack.layers)
    writer = Writer(
        model, reader.part, reader.params, reader.blocks, stack, states, lengths, room,
        cached=cached,
    )  # fmt: skip
    next_logits, _ = _programs(model.library, model.architecture)
    return writer, next_logits(model.params, hidden[:, None, :])


def write_across(
    model: Model, encoded: Array, valid: Array, room: int, keeps: KeepOutputs | None = None
) -> tuple[Writer, Any]:
    """Return a writer for a decoder that attends to encoder outputs, and the first logits.

    Parameters
    ----------
    encoded, valid
        (batch, n, dim) and boolean (batch, n).
    room
        Maximum number of tokens that will be written.
    keeps
        Which of the outputs stay while it writes; None = all.
    """
    part, params = model.writing_part, model.params["decoder"]
    batch = int(valid.shape[0])
    stack = full_stack(part, room + 1, model.library)
    states = stack.init(
        batch=batch, heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
        carry_dim=part.dim, xp=model.library, dtype=model.dtype, device=model.device,
    )  # fmt: skip
    writer = Writer(
        model, part, params, blocks_of(part, params, crosses_of(part, params, encoded, valid)),
        stack, states, np.zeros(batch), room, own=True,
    )  # fmt: skip
    writer.keeps = keeps
    start = np.full(batch, cast(EncoderDecoder, model.architecture).start, dtype=np.int32)
    return writer, writer.step(model.array(start), np.ones(batch, dtype=bool))


@lru_cache(maxsize=64)
def _programs(library: str, architecture: Architecture) -> tuple[Callable[..., Array], ...]:
    """Return the logits of hidden states and the next positions, compiled if that pays."""

    def next_logits(params: Params, hidden: Array) -> Array:
        """Turn hidden states (batch, 1, dim) into float32 (batch, vocabulary)."""
        xp = backend_of(hidden).xp
        return xp.astype(architecture.logits(params, hidden)[:, 0, :], xp.float32)

    def moved(at: Array, real: Array) -> Array:
        """Add 1 to the positions, (batch, 1), where a token was written."""
        return at + backend_of(at).xp.astype(real, at.dtype)

    return compiled(library, next_logits), compiled(library, moved)
