"""The PyTorch backend record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from attendre_core import backend as core
from attendre_core import numba_kernels
from attendre_core.backend import Backend
from attendre_core.eager import parts, selection
from attendre_core.errors import ConfigError
from attendre_core.ops.pairs import Pairs
from attendre_torch import (
    compiling,
    flex,
    heads,
    kernels,
    launches,
    namespace,
    pooling,
    sums,
    tables,
)
from attendre_torch.constants import constant_in_traces
from attendre_torch.fused import dispatch
from attendre_torch.launches import or_else
from attendre_torch.looking import readable
from attendre_torch.transforms import transforms

__all__ = ["backend"]

# Dynamo cannot trace context variables: a trace treats the switches as constants.
constant_in_traces(core.generic_only)
constant_in_traces(core.machine_code_allowed)
constant_in_traces(core.fused_mode)


def backend() -> Backend:
    """Return the backend for `torch.Tensor`."""
    return Backend(
        name="torch",
        xp=namespace,
        array_types=(torch.Tensor, torch.nn.Parameter),
        to_numpy=_to_numpy,
        from_numpy=_from_numpy,
        is_concrete=_is_concrete,
        compile=_compile,
        run_step=compiling.run_step,
        share=_share,
        stop_gradient=torch.Tensor.detach,
        device_of=_device_of,
        find_device=_find_device,
        kernels={
            "among_top_k": selection.among_top_k,
            "attend": dispatch.attend_or(pooling.attend_or(_attend)),
            "attention": kernels.attention,
            "bounded": kernels.bounded,
            "count_evicted": or_else(launches.count_evicted, None),
            "count_true": kernels.count_true,
            "displaced": kernels.displaced,
            "erf": torch.erf,
            "fill": launches.fill,
            "finite_entries": or_else(launches.finite_entries, kernels.finite_entries),
            "gather_slots": kernels.gather_slots,
            "kth_largest": kernels.kth_largest,
            "linear": torch.nn.functional.linear,
            "logits": parts.logits,
            "lowest": or_else(launches.lowest, kernels.lowest),
            "masked_softmax": kernels.masked_softmax,
            "over_heads": heads.over_heads,
            "pool_pairs": pooling.pool_or(dispatch.pool_pairs),
            "rms_norm": kernels.rms_norm,
            "rotate_at": or_else(launches.rotate_at, None),
            "rotate_halves": kernels.rotate_halves,
            "push_slots": selection.push_slots,
            "running_count": kernels.running_count,
            "silu": torch.nn.functional.silu,
            "take_slots": kernels.take_slots,
            "sum_logits": dispatch.sum_logits_or(sums.sum_logits),
            "table": tables.table,
            "top_k_threshold": or_else(launches.top_k_threshold, selection.top_k_threshold),
            **_machine_code(),
        },
        transforms=transforms(),
        capabilities=frozenset({"compile", "eager", "grad", "float64", "bfloat16"}),
    )


def _attend(pairs: Pairs, value: torch.Tensor) -> torch.Tensor:
    found = flex.attend(pairs, value)
    return kernels.attend(pairs, value) if found is NotImplemented else found


def _machine_code() -> dict[str, Callable[..., Any]]:
    """Return the kernels that are in machine code on the CPU, if Numba is installed."""
    if not numba_kernels.installed():
        return {
            "admit": or_else(launches.admit, None),
            "attend_top_k": or_else(launches.attend_top_k, None),
            "mean_less_deviations": or_else(launches.mean_less_deviations, None),
            "write_slots": or_else(launches.write_slots, kernels.write_slots),
        }
    from attendre_torch import machine_code

    return {name: getattr(machine_code, name) for name in machine_code.__all__}


def _to_numpy(tensor: torch.Tensor) -> Any:
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16; float32 represents every value
        tensor = tensor.float()
    try:
        return tensor.numpy(force=True)
    except RuntimeError:  # inside of torch.func.grad a tensor has no memory of its own
        kind = str(tensor.dtype).removeprefix("torch.")
        return np.asarray(tensor.tolist(), dtype=kind).reshape(tensor.shape)


def _from_numpy(array: Any, device: Any = None) -> torch.Tensor:
    return torch.tensor(np.asarray(array), device=device)


def _is_concrete(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and readable(tensor)


def _device_of(tensor: torch.Tensor) -> torch.device:
    return tensor.device


def _find_device(device: Any) -> torch.device:
    """Return a device that is there; None is the CPU, whatever the default device is."""
    try:
        found = torch.device("cpu" if device is None else device)
        torch.empty(0, device=found)
    except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"load: device is {device!r}, expected one that PyTorch has here, such as 'cpu' or "
            f"'cuda:0'. ({str(error).splitlines()[0]})"
        ) from error
    return found


def _share(array: Any, dtype: str | None = None, device: Any = None) -> torch.Tensor:
    array = np.asarray(array)
    if dtype == "bfloat16":
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor.to(device) if device is not None else tensor


def _compile(function: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    """Compile to one graph, without code generation: seconds instead of minutes.

    Whether a step can be traced, and gives the same when traced, does not depend on the code
    generator. For speed, use `compiled_step` or ``torch.compile``.
    """
    compiled: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager")
    return compiled
