"""JAX's transforms of functions, named as in `attendre_core.backend.Backend`."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import jax
import jax.export

__all__ = ["exported", "transforms"]


def exported(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Export a function for these arguments, write it out, read it back and return it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> exported(lambda x: x * 2, jnp.ones(3))(jnp.arange(3.0)).tolist()
    [0.0, 2.0, 4.0]
    """
    written = jax.export.export(jax.jit(function))(*arguments).serialize()
    read: Callable[..., Any] = jax.jit(jax.export.deserialize(written).call)
    return read


def transforms() -> dict[str, Callable[..., Any]]:
    """Return the available transforms; export needs the package flatbuffers."""
    available: dict[str, Callable[..., Any]] = {
        "grad": jax.grad,
        "scan": jax.lax.scan,
        "vmap": jax.vmap,
    }
    if find_spec("flatbuffers") is not None:
        available["export"] = exported
    return available
