"""Tables that are kept on the device for the next call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from attendre_core.backend import Array, backend_of

__all__ = ["table"]


def table(like: Array, make: Callable[..., Any], *spec: Hashable, dtype: Any) -> Array:
    """Make a table once for each device and dtype; traced code has it as a constant already."""
    if isinstance(like, jax.core.Tracer):
        return NotImplemented
    return _kept(make, spec, dtype, backend_of(like).device_of(like))


@lru_cache(maxsize=256)
def _kept(
    make: Callable[..., Any], spec: tuple[Hashable, ...], dtype: Any, device: Any
) -> jax.Array:
    with jax.ensure_compile_time_eval():  # a number even if some function is being traced
        return jnp.asarray(make(*spec), dtype=dtype, device=device)
