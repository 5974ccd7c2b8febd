"""Read tokens through a part of a model, chunk by chunk, over memories of fixed size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from attendre_core.backend import Array, Backend, backend
from attendre_core.layer.block import Observer
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import Stack, StackOutput
from attendre_core.policies import Policy
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures.base import Params, Part
from attendre_core.zoo.blocks import blocks_of, ends_of
from attendre_core.zoo.memories import is_far, memory_stack
from attendre_core.zoo.outside import Stores, open_stores, over

__all__ = ["Hidden", "Reader", "States"]

States = tuple[LayerState, ...]


class Hidden(NamedTuple):
    """Hidden states that came out: (batch, n, dim), int32 and boolean (batch, n)."""

    x: Array
    position: Array
    valid: Array


class Reader:
    """A part of a model over memories. It has no state of its own.

    Parameters
    ----------
    part, params
        The part and its parameters.
    memory
        Sizes and policy.
    causal
        Whether positions attend only to earlier ones.
    observer
        An object that watches what the layers do, or None.
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
        observer: Observer | None = None,
    ) -> None:
        self.part, self.params, self.memory = part, params, memory
        self.library, self.dtype, self.causal = library, dtype, causal
        self.backend: Backend = backend(library)
        self.device = self.backend.device_of(tree_leaves(params)[0])
        self.blocks = blocks_of(part, params)
        self._embed, self._final = ends_of(library, part)
        self.observer = observer
        #: Of each layer, what it keeps outside of the device; opened with the first stack.
        self.stores: Stores | None = None

    def stack(self, length: int) -> Stack:
        """Return the layers for inputs of up to ``length`` positions."""
        far = is_far(self.part, length)
        stack = memory_stack(self.part, self.memory, self.library, causal=self.causal, far=far)
        if self.stores is None:
            self.stores = open_stores(stack)
        return over(stack, self.stores)

    def start(self, batch: int) -> States:
        """Make empty states."""
        return self._states_of(self.stack(0), batch)

    def one_row(self) -> States:
        """Make empty states of one row, for their shapes, and open no stores for them."""
        stack = memory_stack(self.part, self.memory, self.library, causal=self.causal, far=False)
        return self._states_of(stack, 1)

    def _states_of(self, stack: Stack, batch: int) -> States:
        part = self.part
        return stack.init(
            batch=batch, heads=part.heads, kv_heads=part.kv_heads, head_dim=part.head_dim,
            carry_dim=part.dim, xp=self.library, dtype=self.dtype, device=self.device,
            chunk=self.memory.chunk,
        )  # fmt: skip

    def read(
        self, state: States, tokens: Any, position: Any, valid: Any, types: Any = None
    ) -> tuple[States, Hidden]:
        """Read one chunk of token ids, NumPy (batch, seq); ``state`` must not be used again.

        ``types`` are those of the tokens; None = all are of type 0.
        """
        given = (tokens, position, valid) if types is None else (tokens, position, valid, types)
        ids, at, real, *kinds = (
            self.backend.from_numpy(np.asarray(a), device=self.device) for a in given
        )
        x = self._embed(self.params, ids, at, *kinds)
        length = int(np.max(np.where(valid, position, -1))) + 1
        stack = self._observed(self.stack(length))
        state, out = stack.step(state, self.blocks, x, at, real, donate=True)
        return state, self._hidden(out)

    def probe(
        self, state: States, tokens: Any, position: Any, valid: Any, *,
        policy: Policy | None = None, donate: bool = False,
    ) -> tuple[States, Hidden]:  # fmt: skip
        """Let token ids, NumPy (batch, seq), attend and score without being read."""
        ids, at, real = (
            self.backend.from_numpy(np.asarray(a), device=self.device)
            for a in (tokens, position, valid)
        )
        x = self._embed(self.params, ids, at)
        stack = self.stack(int(np.max(np.where(valid, position, -1))) + 1)
        state, x = stack.probe(state, self.blocks, x, at, real, policy=policy, donate=donate)
        return state, Hidden(self._final(self.params, x), at, real)

    def again(self, state: States, tokens: Any, position: Any, length: int, types: Any) -> Hidden:
        """Let tokens that the memories hold attend once more, after ``length`` positions.

        Everything is NumPy (batch, seq). Nothing changes, not even scores.
        """
        ids, at, kinds = (
            self.backend.from_numpy(np.asarray(a), device=self.device)
            for a in (tokens, position, types)
        )
        x = self._embed(self.params, ids, at, *([kinds] if self.part.types > 1 else []))
        real = at == at
        _, x = self.stack(length).probe(state, self.blocks, x, at, real, stored=True)
        return Hidden(self._final(self.params, x), at, real)

    def finish(self, state: States, length: int) -> tuple[States, list[Hidden]]:
        """Let all waiting queries out; return the outputs in order."""
        stack = self._observed(self.stack(length))
        if stack.delay == 0:
            return state, []
        state, outs = stack.finish(state, self.blocks, self.memory.chunk, self.memory.finish)
        return state, [self._hidden(out) for out in outs]

    def _observed(self, stack: Stack) -> Stack:
        return stack if self.observer is None else replace(stack, observer=self.observer)

    def _hidden(self, out: StackOutput) -> Hidden:
        return Hidden(self._final(self.params, out.x), out.position, out.valid)
