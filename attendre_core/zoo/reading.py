"""Read tokens through a part of a model, chunk by chunk, over memories of fixed size."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from attendre_core.backend import Array, Backend, backend
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import StackOutput
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architecture import Params, Part
from attendre_core.zoo.stacks import ModelStack, blocks_of, memory_stack

__all__ = ["Hidden", "Reader"]

States = tuple[LayerState, ...]


class Hidden(NamedTuple):
    """Hidden states that came out: (batch, n, dim), int32 and boolean (batch, n)."""

    x: Array
    position: Array
    valid: Array


class Reader:
    """A part of a model over memories; holds no state.

    Parameters
    ----------
    part, params
        The part and its parameters.
    memory
        Sizes and policy.
    causal
        Whether positions attend only backwards.
    """

    def __init__(
        self,
        part: Part,
        params: Params,
        memory: MemoryConfig,
        library: str,
        dtype: str,
        *,
        causal: bool,
    ) -> None:
        self.part, self.params, self.memory = part, params, memory
        self.library, self.dtype, self.causal = library, dtype, causal
        self.backend: Backend = backend(library)
        self.blocks = blocks_of(part, params)

    def stack(self, length: int) -> ModelStack:
        """Return the layers for inputs of up to ``length`` positions so far."""
        context = self.part.context
        far = context is not None and length > context
        return memory_stack(self.part, self.memory, self.library, causal=self.causal, far=far)

    def start(self, batch: int) -> States:
        """Make empty states."""
        part = self.part
        return self.stack(0).init(
            batch, part.heads, part.kv_heads, part.head_dim, part.dim, self.library, self.dtype,
            chunk=self.memory.chunk,
        )  # fmt: skip

    def read(
        self, state: States, tokens: Any, position: Any, valid: Any, *, donate: bool = True
    ) -> tuple[States, Hidden]:
        """Read one chunk of token ids, (batch, seq) in NumPy; the states are used up."""
        array = self.backend.from_numpy
        ids, at, real = (array(np.asarray(a)) for a in (tokens, position, valid))
        x = self.part.embed(self.params, ids, at)
        length = int(np.max(np.where(valid, position, -1))) + 1
        state, out = self.stack(length).step(state, self.blocks, x, at, real, donate=donate)
        return state, self._hidden(out)

    def finish(self, state: States, length: int) -> tuple[States, list[Hidden]]:
        """Let everything that waits come out, in order."""
        stack = self.stack(length)
        if stack.delay == 0:
            return state, []
        if self.memory.finish == "flush":
            state, outs = stack.flush(state, self.blocks)
        else:
            state, outs = stack.drain(state, self.blocks, self.memory.chunk)
        return state, [self._hidden(out) for out in outs]

    def _hidden(self, out: StackOutput) -> Hidden:
        return Hidden(self.part.final(self.params, out.x), out.position, out.valid)
