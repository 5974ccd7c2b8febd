"""Which models of transformers have plain weights that can be shared, and what others are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attendre_core.errors import CheckpointError, ConfigError

__all__ = ["plain_model", "plain_tensors"]

_AS_IT_IS = (
    "AttendreCache(model, memory) and bounded(model, memory) take the model as it is, also for "
    "training."
)


def plain_model(model: Any) -> Any:
    """Return a model of transformers, without ``torch.compile`` around it.

    Raises
    ------
    ConfigError
        If it is not a model of transformers.
    CheckpointError
        If its weights are not what it computes with: it has adapters, is quantised or offloaded.
    """
    model = getattr(model, "_orig_mod", model)
    name = type(model).__name__
    if not (hasattr(model, "state_dict") and hasattr(model, "config")):
        raise ConfigError(
            f"from_transformers: model is a {name}, expected a loaded model of transformers, with "
            "config and state_dict."
        )
    adapted = [part for part in model.named_modules() if hasattr(part[1], "base_layer")]
    if adapted or hasattr(model, "get_base_model"):
        where = f"{adapted[0][0]} is a {_full_name(adapted[0][1])}" if adapted else "a prompt"
        raise CheckpointError(
            f"from_transformers: {name} has adapters ({where}), expected plain weights. Merge them "
            f"with model.merge_and_unload(), or keep them: {_AS_IT_IS}"
        )
    for path, part in model.named_modules():
        weight = getattr(part, "weight", None)
        if weight is not None and not _is_plain(weight):
            raise CheckpointError(
                f"from_transformers: {name} is quantised ({path} is a {_full_name(part)}), "
                "expected weights in float32, bfloat16 or float16. Load it without quantization, "
                f"or keep it: {_AS_IT_IS}"
            )
        if getattr(getattr(part, "_hf_hook", None), "offload", False):
            raise CheckpointError(
                f"from_transformers: {name} is offloaded (weights of {path} are fetched when they "
                "are needed), expected all weights in memory. Load it without device_map, or keep "
                f"it: {_AS_IT_IS}"
            )
    return model


def plain_tensors(model: Any) -> dict[str, Tensor]:
    """Return the floating tensors of a model under their names, also of compiled parts."""
    return {
        name.replace("_orig_mod.", ""): tensor
        for name, tensor in model.state_dict().items()
        if isinstance(tensor, Tensor) and tensor.is_floating_point()
    }


def _is_plain(weight: Any) -> bool:
    if type(weight) not in (Tensor, nn.Parameter):
        return False
    return weight.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def _full_name(part: Any) -> str:
    return f"{type(part).__module__}.{type(part).__name__}"
