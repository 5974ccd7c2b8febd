"""The JAX backend record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attendre_core.backend import Backend
from attendre_core.errors import ConfigError
from attendre_core.ops.pairs import Pairs
from attendre_jax import (
    clamped,
    foreign,
    half,
    heads,
    kernels,
    retrieval,
    rotation,
    sums,
    tables,
    thresholds,
)
from attendre_jax.fused import dispatch
from attendre_jax.transforms import transforms

__all__ = ["backend"]


def backend() -> Backend:
    """Return the backend for `jax.Array`; tracers are recognised by their module."""
    capabilities = {"compile", "grad", "bfloat16"}
    if jax.config.jax_enable_x64:
        capabilities.add("float64")
    return Backend(
        name="jax",
        xp=jnp,
        array_types=(type(jnp.zeros(1)),),
        to_numpy=np.asarray,
        from_numpy=_from_numpy,
        is_concrete=_is_concrete,
        compile=_compile,
        share=_share,
        stop_gradient=jax.lax.stop_gradient,
        device_of=_device_of,
        find_device=_find_device,
        alignment=64,
        kernels={
            "approximate_threshold": retrieval.approximate_threshold,
            "attend": dispatch.attend_or(_attend),
            "attend_top_k": foreign.attend_top_k,
            "count_true": heads.count_true,
            "erf": jax.scipy.special.erf,
            "finite_entries": heads.finite_entries,
            "gather_slots": kernels.gather_slots,
            "kth_largest": kernels.kth_largest,
            "lowest": kernels.lowest,
            "over_heads": heads.over_heads,
            "pool_pairs": dispatch.pool_pairs,
            "rotate_at": rotation.rotate_at,
            "sum_logits": dispatch.sum_logits_or(sums.sum_logits),
            "table": tables.table,
            "take_rows": kernels.take_rows,
            "top_k_threshold": thresholds.top_k_threshold,
            "write_slots": kernels.write_slots,
        },
        transforms=transforms(),
        capabilities=frozenset(capabilities),
    )


def _attend(pairs: Pairs, value: jax.Array) -> jax.Array:
    kernel = half.attend if len(pairs.terms) == 1 else clamped.attend
    return kernel(pairs, value)


def _from_numpy(array: Any, device: Any = None) -> jax.Array:
    return jax.device_put(np.array(array), device)  # asked for, as jax.transfer_guard sees it


def _device_of(array: Any) -> Any:
    """Return the device to which an array is committed; None leaves it to JAX."""
    if isinstance(array, jax.core.Tracer) or not array.committed:
        return None
    devices = array.devices()
    return next(iter(devices)) if len(devices) == 1 else None


def _find_device(device: Any) -> Any:
    """Return a device of JAX, also by its platform and number: ``"cpu:1"``."""
    if device is None or not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as error:
        there = ", ".join(f"{d.platform}:{d.id}" for d in jax.devices())
        raise ConfigError(
            f"load: device is {device!r}, expected one that JAX has here: {there}."
        ) from error


def _compile(function: Callable[..., Any], donate: tuple[int, ...] = ()) -> Callable[..., Any]:
    compiled: Callable[..., Any] = jax.jit(function, donate_argnums=donate)
    return compiled


def _share(array: Any, dtype: str | None = None, device: Any = None) -> jax.Array:
    if dtype == "bfloat16":
        array = np.asarray(array).view(jnp.bfloat16)
    return jax.device_put(array, device)


def _is_concrete(array: Any) -> bool:
    if isinstance(array, jax.core.Tracer):
        return False
    return all(device.platform == "cpu" for device in array.devices())
