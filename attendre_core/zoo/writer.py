"""Write one token at a time against what was read.

::

    token ─► embed ─► layers: memories, or a cache of prepared keys ─► final ─► next-token logits
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from attendre_core.backend import Array, beside
from attendre_core.errors import StateError
from attendre_core.layer.stack import Stack
from attendre_core.zoo.architectures.base import EncoderDecoder, Params, Part
from attendre_core.zoo.blocks import ModelBlock, blocks_of, crosses_of
from attendre_core.zoo.decode_cache import DecodeCache, can_cache
from attendre_core.zoo.memories import full_stack
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

    def step(self, blocks: Blocks, x: Array, at: Array, position: Any, active: Any) -> Array:
        """Add one token per row; parameters as in `DecodeCache.step`."""
        real = beside(active[:, None], x)
        self.states, out = self.stack.step(self.states, blocks, x, at, real, donate=self._own)
        self._own = True
        return out.x

    def probe(self, blocks: Blocks, x: Array, at: Array, real: Array) -> Array:
        """Return the output for several tokens, (batch, n, dim), without adding them."""
        return self.stack.step(self.states, blocks, x, at, real)[1].x

    def reorder(self, index: Any, rows: Array) -> None:
        """Reorder rows: row ``index[i]`` becomes row i."""
        self.states = self.stack.reorder(self.states, rows)
        self._own = True


class Writer:
    """A decoder in the middle of a text, one row per text.

    Parameters
    ----------
    model
        Turns hidden states into logits.
    part, params, blocks
        The decoder.
    stack, states
        Its layers after reading, and their states.
    position
        (batch,): the position of the next token of each row.
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
        *,
        cached: bool = False,
        own: bool = False,
    ) -> None:
        self.model, self.part, self.params, self.blocks = model, part, params, blocks
        self.position = np.asarray(position, dtype=np.int32)
        self._layers: Memories | DecodeCache = Memories(stack, states, own=own)
        self._cached = cached
        #: The input that each row belongs to: its beams attend to the same encoder outputs.
        self._inputs = np.arange(len(self.position))

    def write(self, tokens: Any, active: Any) -> Any:
        """Add a token to each active row; return next-token logits, (batch, vocabulary)."""
        array = self.model.array
        active = np.asarray(active, dtype=bool)
        at = array(self.position[:, None].copy())
        ids = array(np.asarray(tokens, dtype=np.int32)[:, None])
        x = self.part.embed(self.params, ids, at)
        x = self._ready().step(self.blocks, x, at, self.position, active)
        self.position = self.position + active.astype(np.int32)
        return self.logits(self.part.final(self.params, x))[:, 0, :]

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
        return self.logits(self.part.final(self.params, out))

    def logits(self, hidden: Array) -> Any:
        """Return the logits of hidden states (batch, n, dim), as float32 in NumPy."""
        values = self.model.architecture.logits(self.model.params, hidden)
        return np.asarray(self.model.backend.to_numpy(values), dtype=np.float32)

    def reorder(self, index: Any) -> None:
        """Reorder rows: row ``index[i]`` becomes row i."""
        index = np.asarray(index)
        rows = self.model.array(index.astype(np.int32))
        self._ready().reorder(index, rows)
        inputs = self._inputs[index]
        if not np.array_equal(inputs, self._inputs):
            self.blocks = tuple(self._reordered(block, rows) for block in self.blocks)
        self._inputs, self.position = inputs, self.position[index]

    def _ready(self) -> Memories | DecodeCache:
        """Return the layers; a cache is made before the first token."""
        if self._cached and isinstance(self._layers, Memories):
            held = self._layers
            self._layers = DecodeCache(held.stack.layers, held.states, self.position)
        return self._layers

    def _reordered(self, block: ModelBlock, rows: Array) -> ModelBlock:
        if block.cross is None:
            return block
        key, value, valid = (self.model.backend.xp.take(a, rows, axis=0) for a in block.cross)
        return replace(block, cross=(key, value, valid))


def write_after(
    model: Model, reader: Reader, states: States, lengths: Any, hidden: Array, room: int
) -> tuple[Writer, Any]:
    """Return a writer that continues what a decoder has read, and the first logits.

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
    cached = not inside and can_cache(model.library, stack.layers, states)
    writer = Writer(
        model, reader.part, reader.params, reader.blocks, stack, states, lengths, cached=cached
    )
    return writer, writer.logits(hidden[:, None, :])[:, 0, :]


def write_across(model: Model, encoded: Array, valid: Array, room: int) -> tuple[Writer, Any]:
    """Return a writer for a decoder that attends to encoder outputs, and the first logits.

    Parameters
    ----------
    encoded, valid
        (batch, n, dim) and boolean (batch, n).
    room
        Maximum number of tokens that will be written.
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
        stack, states, np.zeros(batch), own=True,
    )  # fmt: skip
    start = cast(EncoderDecoder, model.architecture).start
    return writer, writer.write(np.full(batch, start), np.ones(batch, dtype=bool))
