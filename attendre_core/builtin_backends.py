"""The backends of NumPy, with kernels, and of array-api-strict, without any."""

from __future__ import annotations

from typing import Any

import numpy as np

from attendre_core import numba_kernels
from attendre_core.backend import Array, Backend
from attendre_core.eager import numpy_kernels, parts, selection
from attendre_core.errors import ConfigError

__all__ = ["numpy_backend", "strict_backend"]


def numpy_backend() -> Backend:
    """Return the backend for `numpy.ndarray`."""
    return Backend(
        name="numpy",
        xp=np,
        array_types=(np.ndarray,),
        to_numpy=np.asarray,
        from_numpy=_copied,
        share=_shared,
        find_device=_only_cpu,
        kernels={
            **{name: getattr(numpy_kernels, name) for name in numpy_kernels.__all__},
            "logits": parts.logits,
            "among_top_k": selection.among_top_k,
            "top_k_threshold": selection.top_k_threshold,
            **(numba_kernels.KERNELS if numba_kernels.installed() else {}),
        },
        capabilities=frozenset({"float64"}),
    )


def strict_backend() -> Backend:
    """Return the backend for array-api-strict, which allows only what the standard does."""
    import array_api_strict as xp

    return Backend(
        name="array_api_strict",
        xp=xp,
        array_types=(type(xp.zeros(1)),),
        to_numpy=np.asarray,
        from_numpy=lambda array, device=None: xp.asarray(array, device=device),
        find_device=_only_cpu,
        capabilities=frozenset({"float64"}),
    )


def _copied(array: Any, device: Any = None) -> Array:
    return np.array(array)


def _shared(array: Any, dtype: str | None = None, device: Any = None) -> Array:
    if dtype == "bfloat16":  # NumPy has no bfloat16; float32 represents every value
        return (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
    return array


def _only_cpu(device: Any) -> None:
    if device not in (None, "cpu"):
        raise ConfigError(
            f"load: device is {device!r}, expected 'cpu': NumPy computes nowhere else. Use "
            "backend='torch' or backend='jax' for other devices."
        )
