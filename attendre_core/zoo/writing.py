"""Write one token at a time against what was read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attendre_core.backend import Array, Backend, backend
from attendre_core.layer.records import LayerState
from attendre_core.zoo.architecture import Architecture, Params, Part
from attendre_core.zoo.stacks import ModelBlock, ModelStack

__all__ = ["Writer"]


class Writer:
    """A decoder in the middle of a text, a row for each text.

    Parameters
    ----------
    stack, states, blocks
        The decoder's layers, from `Stack.decoding` or fresh.
    position
        (batch,): where the next token of each row stands.
    own
        The states belong to nobody else, so that they may be written over.
    """

    def __init__(
        self,
        architecture: Architecture,
        part: Part,
        params: Params,
        top: Params,
        stack: ModelStack,
        states: tuple[LayerState, ...],
        blocks: tuple[ModelBlock, ...],
        position: Any,
        *,
        own: bool = False,
    ) -> None:
        self.architecture, self.part, self.params, self.top = architecture, part, params, top
        self.stack, self.states, self.blocks = stack, states, blocks
        self.position = np.asarray(position, dtype=np.int32)
        self.backend: Backend = backend(stack.library)
        self._own = own
        #: Which input each row belongs to: its beams attend to the same encoder's output.
        self._inputs = np.arange(len(self.position))

    def write(self, tokens: Any, active: Any) -> Any:
        """Add a token to each active row; returns next-token logits, (batch, vocabulary)."""
        array = self.backend.from_numpy
        ids = array(np.asarray(tokens, dtype=np.int32)[:, None])
        at = array(self.position[:, None].copy())
        real = array(np.asarray(active, dtype=bool)[:, None])
        x = self.part.embed(self.params, ids, at)
        self.states, out = self.stack.step(self.states, self.blocks, x, at, real, donate=self._own)
        self._own = True
        self.position = self.position + np.asarray(active, dtype=np.int32)
        return self.logits(self.part.final(self.params, out.x)[:, 0, :])

    def logits(self, hidden: Array) -> Any:
        """Return the logits of hidden states (batch, dim), as float32 in NumPy."""
        values = self.architecture.logits(self.top, hidden[:, None, :])[:, 0, :]
        return np.asarray(self.backend.to_numpy(values), dtype=np.float32)

    def reorder(self, index: Any) -> None:
        """Take row ``index[i]`` as row i."""
        rows = self.backend.from_numpy(np.asarray(index, dtype=np.int32))
        self.states = self.stack.reorder(self.states, rows)
        self.reorder_inputs(np.asarray(index), rows)
        self._own = True

    def reorder_inputs(self, index: Any, rows: Array) -> None:
        """Take row ``index[i]`` of all that is not in the states as row i."""
        inputs = self._inputs[index]
        if not np.array_equal(inputs, self._inputs):
            self.blocks = tuple(self._reordered(block, rows) for block in self.blocks)
        self._inputs, self.position = inputs, self.position[index]

    def _reordered(self, block: ModelBlock, rows: Array) -> ModelBlock:
        if block.cross is None:
            return block
        key, value, valid = (self.backend.xp.take(a, rows, axis=0) for a in block.cross)
        return replace(block, cross=(key, value, valid))
