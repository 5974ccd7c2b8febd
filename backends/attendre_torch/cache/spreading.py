"""Find out whether the heads of a model of transformers are spread over processes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attendre_torch.heads import HeadGroup

__all__ = ["group_for", "group_of_model"]


def group_of_model(model: Any) -> HeadGroup | None:
    """Return the processes over which tensor parallelism has split a model; or None.

    Both ways are recognised: transformers' own (``DistributedConfig(tp_size=...)`` or
    ``tp_plan="auto"``) and PyTorch's ``parallelize_module``.
    """
    mesh = getattr(model, "_device_mesh", None)
    if mesh is not None and (getattr(model, "_tp_size", None) or 1) > 1:
        return HeadGroup.of(mesh["tp"] if "tp" in (mesh.mesh_dim_names or ()) else mesh)
    for part in model.modules():
        if hasattr(part, "_distribute_module_applied"):
            mesh = getattr(getattr(part, "weight", None), "device_mesh", None)
            if mesh is not None:  # with FSDP: (its dimension, that of the heads)
                return HeadGroup.of(mesh.get_group(mesh.ndim - 1))
    return None


def group_for(group: HeadGroup | None, module: Any, query: Tensor) -> HeadGroup | None:
    """Return the group if the queries of an attention module are part of all heads.

    A plan may leave attention whole: then every process has all heads, and agrees anyway.
    """
    heads = getattr(getattr(module, "config", None), "num_attention_heads", None)
    return None if group is None or heads == query.shape[1] else group
