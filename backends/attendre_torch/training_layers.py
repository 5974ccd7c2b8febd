"""Run a model's layer in training: recomputed on request, exact under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, step_block
from attendre_core.layer.records import LayerState
from attendre_torch.autocast import with_autocast_of, without_autocast

__all__ = ["run_layer", "run_layer_again"]


class _Autocast:
    """A block that computes under the autocast that was on when it was created.

    Its queries, keys and values are converted to the dtype of the memory.
    """

    def __init__(self, block: Block, like: Tensor) -> None:
        self._block, self._dtype = block, like.dtype
        self._autocast = with_autocast_of(like)
        self.encoding_params = getattr(block, "encoding_params", None)

    def project(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value."""
        with self._autocast():
            return tuple(part.to(self._dtype) for part in self._block.project(x, position))

    def finish(self, attended: Tensor, carry: Tensor) -> Tensor:
        """Return the output of the layer."""
        with self._autocast():
            output: Tensor = self._block.finish(attended, carry)
            return output


def run_layer(
    function: Callable[..., Any],
    layer: AttendreLayer,
    block: Block,
    state: LayerState,
    *arrays: Any,
    **settings: Any,
) -> Any:
    """Run a layer of a `Stack` with autocast in its block, but not for logits and scores."""
    exact = _Autocast(block, state.kv.key)
    with without_autocast(state.kv.key):
        return function(layer, exact, state, *arrays, **settings)


def run_layer_again(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """Like `run_layer`, but recompute a step in the backward pass."""
    if function is not step_block or not torch.is_grad_enabled():
        return run_layer(function, *arguments, **settings)
    return recomputed(run_layer, function, *arguments, use_reentrant=False)
