"""The layers of a model for training: recomputed on request, exact under autocast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as recomputed

from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.stack import Block, Flow, Stack
from attendre_core.layer.trace import StepTrace
from attendre_torch.autocast import without_autocast

__all__ = ["TrainingStack"]


@dataclass(frozen=True)
class TrainingStack(Stack):
    """A stack for PyTorch modules.

    Parameters
    ----------
    checkpoint
        Compute each layer's step again in the backward pass, instead of keeping what it computed.
    """

    checkpoint: bool = False

    def step_layer(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        """Send a chunk through one layer."""
        if self.checkpoint and torch.is_grad_enabled():
            result: tuple[LayerState, Flow, StepTrace | None] = recomputed(
                self._advance, number, state, block, flow, False, use_reentrant=False
            )
            return result
        return self._advance(number, state, block, flow, donate)

    def empty_layer(
        self, number: int, state: LayerState, block: Block, length: int
    ) -> tuple[LayerState, list[Flow]]:
        """Let the waiting queries of one layer out."""
        with without_autocast(state.kv.key):
            state, pieces = self.layers[number].empty_queue(state, length, _table(block))
        return state, [_finished(block, piece) for piece in pieces]

    def _advance(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        kind = state.kv.key.dtype
        query, key, value = (x.to(kind) for x in block.project(flow.x, flow.position))
        chunk = Chunk(
            query, key, value, flow.position, flow.valid, flow.x, flow.document, flow.metadata
        )
        with without_autocast(query):
            state, out = self.layers[number].step(
                state, chunk, encoding_params=_table(block), donate=donate
            )
        return state, _finished(block, out), out.trace


def _table(block: Block) -> Any:
    return getattr(block, "encoding_params", None)


def _finished(block: Block, out: LayerOutput) -> Flow:
    x = block.finish(out.value, out.carry)
    return Flow(x, out.position, out.valid, out.document, out.metadata)
