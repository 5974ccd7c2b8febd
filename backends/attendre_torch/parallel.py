"""Spread the heads of modules over processes: tensor parallelism, each with some of the heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from attendre_core.errors import ConfigError
from attendre_core.positions import ALiBi
from attendre_torch.attention import AttendreAttention
from attendre_torch.heads import HeadGroup
from attendre_torch.trainable import TrainableModel

__all__ = ["HeadParallel", "check_divisible", "group_of", "shard_heads"]

#: Linear maps of a layer of the zoo that are split by outputs, and by inputs.
_BY_OUTPUT, _BY_INPUT = ("q", "k", "v", "gate", "up"), ("out", "down")


def shard_heads(module: Any, mesh: DeviceMesh) -> Any:
    """Spread the heads of a module over processes, in place.

    Every `AttendreAttention` inside the module is split as `HeadParallel` says. A `TrainableModel`
    is split by heads and by the features of its feed-forward parts; tables and norms stay whole.
    What a module returns is the same in all processes; states hold the heads of their process.

    Parameters
    ----------
    module
        A `TrainableModel`, an `AttendreAttention`, or a module that contains some.
    mesh
        One dimension: the processes that share the heads. All of them must call this, and later
        the module, with the same input.

    Returns
    -------
    module
        The same one.

    Raises
    ------
    ConfigError
        If heads do not divide by the number of processes, or if parts of a module belong to all
        heads alike (ALiBi, one matrix for queries, keys and values). Nothing is changed then.

    Examples
    --------
    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.distributed.device_mesh import init_device_mesh
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> attention = AttendreAttention(dim=32, heads=4, memory=16)
    >>> attention = shard_heads(attention, init_device_mesh("cpu", (1,)))
    >>> out, state = attention(torch.ones(2, 8, 32))
    >>> type(attention.query.weight).__name__, out.shape, state.kv.key.shape
    ('DTensor', torch.Size([2, 8, 32]), torch.Size([2, 4, 16, 8]))
    >>> dist.destroy_process_group()
    """
    group = HeadGroup.of(mesh)
    models = [part for part in module.modules() if isinstance(part, TrainableModel)]
    attentions = [part for part in module.modules() if isinstance(part, AttendreAttention)]
    if not models and not attentions:
        raise ConfigError(
            f"shard_heads: {type(module).__name__} contains no AttendreAttention and no "
            "TrainableModel. For a model of transformers use its own tensor parallelism; "
            "AttendreCache recognises it."
        )
    for model in models:
        _check_model(model, group)
    for attention in attentions:
        _check_attention(attention, group)
    for model in models:
        _spread_model(model, mesh, group)
    for attention in attentions:
        parallelize_module(attention, mesh, HeadParallel())
    return module


class HeadParallel(ParallelStyle):  # type: ignore[misc]
    """Spread the heads of one `AttendreAttention`: a style for ``parallelize_module``.

    Queries, keys and values are split by heads (``ColwiseParallel``), and so is the table of a
    `T5Bias`; the output projection adds up (``RowwiseParallel``). A plan may also give these two
    styles to ``query``, ``key``, ``value`` and ``out`` itself, if there is no table.
    """

    def _apply(self, module: Any, device_mesh: DeviceMesh) -> Any:
        if not isinstance(module, AttendreAttention):
            raise ConfigError(
                f"HeadParallel: module is a {type(module).__name__}, expected an AttendreAttention."
            )
        group = HeadGroup.of(device_mesh)
        _check_attention(module, group)
        rank = self.src_data_rank
        maps = {name: ColwiseParallel() for name in ("query", "key", "value")}
        plan = {**maps, "out": RowwiseParallel()}
        parallelize_module(module, device_mesh, plan, src_data_rank=rank)
        if module.table is not None:
            table = distribute_tensor(module.table, device_mesh, [Shard(1)], src_data_rank=rank)
            module.table = nn.Parameter(table, module.table.requires_grad)
        module.head_group = group
        return module


def group_of(module: AttendreAttention) -> HeadGroup | None:
    """Find the processes over which a plan of the caller's own has spread the heads; or None.

    Raises
    ------
    ConfigError
        If the plan splits only some of the maps, or heads do not divide.
    """
    maps = {name: getattr(module, name) for name in ("query", "key", "value", "out")}
    # FSDP's parameters are DTensors outside of forward, too; parallelize_module marks its modules.
    split = [name for name, part in maps.items() if hasattr(part, "_distribute_module_applied")]
    if not split:
        return None
    if len(split) < len(maps) or module.table is not None:
        whole = [name for name in maps if name not in split]
        whole += [] if module.table is None else ["table"]
        raise ConfigError(
            f"AttendreAttention: {', '.join(split)} are split over processes, but "
            f"{', '.join(whole)} is whole. Give parallelize_module the style HeadParallel() for "
            "the whole attention, or call attendre_torch.shard_heads(module, mesh)."
        )
    mesh = module.query.weight.device_mesh  # with FSDP: (its dimension, that of the heads)
    group = HeadGroup.of(mesh.get_group(mesh.ndim - 1))
    _check_attention(module, group)
    return group


def check_divisible(where: str, heads: int, kv_heads: int, group: HeadGroup) -> None:
    """Raise if heads do not divide by the number of processes."""
    for what, number in (("query heads", heads), ("K/V heads", kv_heads)):
        if number % group.size:
            raise ConfigError(
                f"{where}: {number} {what} cannot be spread over {group.size} processes, expected "
                "a multiple. Use a mesh whose size divides the heads, and the others for data "
                "parallelism."
            )


def _check_attention(module: AttendreAttention, group: HeadGroup) -> None:
    check_divisible("AttendreAttention", module.heads, module.kv_heads, group)
    encoding = module.layer.encoding
    if isinstance(getattr(encoding, "inner", encoding), ALiBi) and group.size > 1:
        raise ConfigError(
            "AttendreAttention: the slopes of ALiBi depend on the number of a head among all "
            "heads, so it cannot be spread over processes. Use another position scheme."
        )


def _check_model(model: TrainableModel, group: HeadGroup) -> None:
    part, where = model.reading_part, f"shard_heads: {type(model.reading_part).__name__}"
    check_divisible(where, part.heads, part.kv_heads, group)
    for layer in (one.tree() for one in model.weights.layers_of(model.reading_name)):
        plain = {name: one for name, one in layer.items() if isinstance(one, Tensor)}
        linear = {name: one for name, one in layer.items() if isinstance(one, nn.Linear)}
        missing = [name for name in ("q", "k", "v", "out") if name not in linear]
        by_head = [name for name in plain if name in ("q_norm", "k_norm") and plain[name].ndim > 1]
        if "bias_table" in plain:
            by_head.append("bias_table")
        if missing or by_head or model.reading_name is not None:
            raise ConfigError(
                f"{where} cannot be spread over processes: expected linear maps q, k, v and out in "
                f"every layer, and no parameter with a part for each head (here: "
                f"{', '.join(by_head) or 'none'}; not found: {', '.join(missing) or 'none'}). "
                "Llama, Qwen, Mistral, Gemma and BERT can be; use fully_shard or DDP for others."
            )
        for name in set(linear) & {"up", "gate"}:
            if linear[name].out_features % group.size:
                raise ConfigError(
                    f"{where}: {linear[name].out_features} features of {name} cannot be spread "
                    f"over {group.size} processes, expected a multiple."
                )


def _spread_model(model: TrainableModel, mesh: DeviceMesh, group: HeadGroup) -> None:
    for layer in model.weights.layers_of():
        for name, part in layer.tree().items():
            if name in _BY_OUTPUT + _BY_INPUT:
                style = ColwiseParallel() if name in _BY_OUTPUT else RowwiseParallel()
                parallelize_module(part, mesh, style)
    model.head_group = group
