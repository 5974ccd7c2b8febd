"""Run the layers of a model in training: recomputed on request, exact under autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint as recomputed

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, step_block
from attendre_core.layer.records import LayerState
from attendre_core.zoo.architectures.base import Params, Part
from attendre_torch.autocast import with_autocast_of, without_autocast
from attendre_torch.fsdp import check_scores
from attendre_torch.heads import HeadGroup, check_agreement, head_group
from attendre_torch.weights import LayerWeights

__all__ = ["TrainedLayer", "run_layer", "run_layer_again"]


class TrainedLayer:
    """One layer of a part in training: what `Stack` calls a block.

    Parameters
    ----------
    part
        With the heads of this process.
    weights
        Of the layer.
    group
        The processes that share its heads, or None.
    """

    def __init__(self, part: Part, weights: LayerWeights, group: HeadGroup | None) -> None:
        self._part, self._weights, self.group = part, weights, group

    @property
    def params(self) -> Params:
        """The weights as they are now."""
        found = self._weights.tree()
        if self.group is None:
            return found
        # Norms of queries and keys are whole, but each process applies them to its own heads.
        shared = {name: found[name] for name in ("q_norm", "k_norm") if name in found}
        return found | {name: _Shared.apply(one, self.group) for name, one in shared.items()}

    @property
    def encoding_params(self) -> Any:
        """Learned arrays of the position scheme."""
        return self._part.encoding_params(self.params)

    def project(self, x: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Return query, key and value."""
        return self._part.project(self.params, x, position)

    def finish(self, attended: Tensor, carry: Tensor) -> Tensor:
        """Return the output of the layer."""
        output: Tensor = self._part.finish(self.params, attended, carry)
        return output

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function as the ``forward`` of the layer's module."""
        return self._weights.run(function, *args, **kwargs)


class _Shared(torch.autograd.Function):  # type: ignore[misc]
    """Return a parameter that all processes have; add up its gradient over them."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, group: HeadGroup) -> Tensor:
        ctx.group = group
        return parameter.view_as(parameter)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.group.reduced(gradient, "sum"), None


class _Autocast:
    """A block that computes under the autocast that was active when it was made.

    Its queries, keys and values are cast to the dtype of the memory.
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
    block: TrainedLayer,
    state: LayerState,
    *arrays: Any,
    **settings: Any,
) -> Any:
    """Run a layer for `Stack`: autocast applies to its block, but not to logits and scores."""
    return block.run(_run, function, layer, block, state, *arrays, **settings)


def run_layer_again(
    function: Callable[..., Any],
    layer: AttendreLayer,
    block: TrainedLayer,
    *arrays: Any,
    **settings: Any,
) -> Any:
    """Do what `run_layer` does, but recompute a step in the backward pass."""
    if function is not step_block or not torch.is_grad_enabled():
        return run_layer(function, layer, block, *arrays, **settings)
    return block.run(recomputed, _run, function, layer, block, *arrays, use_reentrant=False)


def _run(
    function: Callable[..., Any],
    layer: AttendreLayer,
    block: TrainedLayer,
    state: LayerState,
    *arrays: Any,
    **settings: Any,
) -> Any:
    check_scores("TrainableModel", state)
    exact = _Autocast(block, state.kv.key)
    with without_autocast(state.kv.key), head_group(block.group):
        result = function(layer, exact, state, *arrays, **settings)
    check_agreement(block.group, layer.kv_memory, result[0].kv)
    return result
