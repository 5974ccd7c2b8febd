"""One input on its way through the memories of a model in training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from attendre_core.layer.chunks import chunks_of
from attendre_core.layer.stack import Stack, StackOutput
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures.base import Params, Part
from attendre_torch.states import detach
from attendre_torch.training_input import compacted

__all__ = ["Piece", "TrainingPass"]

#: Output (batch, n, C), its places in the input, and which of them are real, (batch, n).
Piece = tuple[Tensor, Tensor, Tensor]


class TrainingPass:
    """Reads an input chunk by chunk, and holds the states in between.

    Parameters
    ----------
    part
        With the heads of this process.
    memory
        Settings of the memories.
    tokens, valid
        (batch, length).
    """

    def __init__(self, part: Part, memory: MemoryConfig, tokens: Tensor, valid: Tensor) -> None:
        self._part, self._memory = part, memory
        tokens, valid, place = compacted(tokens, valid)
        position = torch.cumsum(valid, dim=1, dtype=torch.int32) - 1
        position = torch.where(valid, position, torch.zeros_like(position))
        self.length = tokens.shape[1]
        self._input = (tokens, position, valid, place)
        self._state: Any = None

    def groups(self, every: int | None) -> Iterator[tuple[list[Any], bool]]:
        """Yield so many chunks at a time (None = all of them), and whether they are the last."""
        chunks = list(chunks_of(self._input, self._memory.chunk, fill=False))
        rest = iter(chunks)
        count = max(len(chunks), 1) if every is None else every
        for end in range(count, len(chunks) + count, count):
            yield list(islice(rest, count)), end >= len(chunks)

    def read(
        self,
        stack: Stack,
        params: Params,
        blocks: Sequence[Any],
        chunks: list[Any],
        last: bool,
        dtype: torch.dtype,
    ) -> list[Piece]:
        """Read chunks, and after the ``last`` ones let waiting queries attend.

        No gradient flows into what was read by an earlier call. States are made in ``dtype``.
        """
        tokens, _, _, place = self._input
        if self._state is None:
            part = self._part
            self._state = stack.init(
                batch=tokens.shape[0], heads=part.heads, kv_heads=part.kv_heads,
                head_dim=part.head_dim, carry_dim=part.dim, xp="torch", dtype=dtype,
                device=tokens.device, metadata=(place[:, :1],), chunk=self._memory.chunk,
            )  # fmt: skip
        state, outputs = detach(self._state), []
        for ids, at, real, where in chunks:
            x = self._part.embed(params, ids, at)
            state, out = stack.step(
                state, blocks, x, at, real, metadata=(where,),
                donate=not torch.is_grad_enabled(),
            )  # fmt: skip
            outputs.append(out)
        if last and stack.delay:
            state, rest = stack.finish(state, blocks, self._memory.chunk, self._memory.finish)
            outputs += rest
        self._state = state
        return [self._piece(params, out) for out in outputs]

    def _piece(self, params: Params, out: StackOutput) -> Piece:
        return self._part.final(params, out.x), out.metadata[0], out.valid
