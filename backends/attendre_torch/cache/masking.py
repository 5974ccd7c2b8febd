"""What models that attend by themselves are told about padding, and what their masks tell us.

A forward pre-hook of PyTorch reads the ``attention_mask`` that such a model is given, and passes on
another one where the model computes a bias from it. Nothing of the model is replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from attendre_core.errors import ConfigError
from attendre_torch.cache.held import Held

__all__ = ["makes_biases", "watch_masks"]


def makes_biases(model: Any) -> bool:
    """Whether a model computes a bias from its mask, one number for each token (Bloom, Falcon)."""
    return any(_makes_bias(part) for part in model.modules())


def _makes_bias(part: Any) -> bool:
    return hasattr(part, "build_alibi_tensor") or bool(getattr(part, "use_alibi", False))


def watch_masks(model: Any) -> list[Any]:
    """Let what a model holds by itself know its masks; returns the hooks that do this.

    They are on the innermost parts that take a mask and a cache: parts around them may need the
    mask of all tokens, and may not have been given the cache.
    """
    every = [part for part in model.modules() if _takes_both(part)]
    inner = [
        part for part in every if not any(_takes_both(x) for x in part.modules() if x is not part)
    ]
    return [part.register_forward_pre_hook(_watch(part), with_kwargs=True) for part in inner]


def _takes_both(part: Any) -> bool:
    both = {"attention_mask", "past_key_values"}
    return isinstance(part, PreTrainedModel) and both <= signature(part.forward).parameters.keys()


def _watch(part: Any) -> Callable[..., Any]:
    names = list(signature(part.forward).parameters)

    def before(_: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        found = getattr(given.get("past_key_values"), "layers", None) or ()
        layers = [layer for layer in found if isinstance(layer, Held)]
        mask = given.get("attention_mask")
        for layer in layers:
            layer.see(mask)
        if not (layers and layers[0].inside):
            return None
        return (), given | {"attention_mask": _mask_of_held(layers[0], mask, given)}

    return before


def _mask_of_held(layer: Held, mask: Any, given: dict[str, Any]) -> Tensor:
    """Return the columns of a mask that belong to what is held and to what is new."""
    new = given.get("input_ids")
    new = given["inputs_embeds"] if new is None else new
    batch, count = new.shape[:2]
    if mask is None:
        return torch.ones((batch, layer.held + count), dtype=torch.int64, device=new.device)
    shape = getattr(mask, "shape", None)
    if shape is None or len(shape) != 2 or shape[1] != layer.seen + count:
        raise ConfigError(
            f"AttendreCache: attention_mask is of shape {shape and tuple(shape)}, but ({batch}, "
            f"{layer.seen + count}) is expected: {layer.seen} tokens were read before and {count} "
            "are new. Pass the mask of all of them."
        )
    columns: Tensor = layer.columns(mask)
    return columns
