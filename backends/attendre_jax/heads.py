"""Scores of heads that are spread over an axis of a mesh, inside `jax.shard_map`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core import ops

__all__ = ["count_true", "finite_entries", "head_axis", "over_heads"]

_AXIS: ContextVar[str | tuple[str, ...] | None] = ContextVar("head_axis", default=None)


@contextmanager
def head_axis(name: str | tuple[str, ...]) -> Iterator[None]:
    """Add up scores over a named axis, for what is traced inside a ``with`` block.

    Inside `jax.shard_map` a layer sees only the heads of its own device. All devices must keep the
    same entries, so the scores of their heads are added up (`jax.lax.psum`) before anything is
    ranked: (batch, slots) numbers in each step, and flags. With ``per_head=True`` each K/V head
    decides alone and only flags and counters meet; there, a K/V head must not be split.

    Under `jax.jit` on arrays that are placed on a mesh, XLA does this by itself.

    Parameters
    ----------
    name
        The axis, or axes, over which heads are split.

    Examples
    --------
    >>> import attendre_core as at
    >>> from jax.sharding import PartitionSpec as P
    >>> from attendre_jax import state_shardings
    >>> mesh = jax.make_mesh((1,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()))
    >>> state = layer.init(batch=1, heads=4, head_dim=2, xp=jnp)
    >>> held = jax.tree.map(
    ...     lambda where: where.spec, state_shardings(state, mesh, heads="model", batch=None)
    ... )
    >>> def step(state, x):
    ...     with head_axis("model"):
    ...         state, out = layer.step(state, at.Chunk(x, x, x))
    ...     return state, out.value
    >>> heads = P(None, None, "model")
    >>> step = jax.shard_map(step, mesh=mesh, in_specs=(held, heads), out_specs=(held, heads))
    >>> state, value = jax.jit(step)(state, jnp.ones((1, 4, 4, 2)))
    >>> value.shape
    (1, 4, 4, 2)
    """
    token = _AXIS.set(name)
    try:
        yield
    finally:
        _AXIS.reset(token)


def over_heads(x: jax.Array, how: str = "sum", *, per_head: bool = False) -> Any:
    """Combine the heads of this device, then those of all devices."""
    name = _AXIS.get()
    if name is None or per_head:
        return NotImplemented
    local = ops.over_heads.plain(x, how)  # type: ignore[attr-defined]
    if how == "any":
        return lax.pmax(local.astype(jnp.int32), name) > 0
    if how == "max":
        return lax.pmax(local, name)
    total = lax.psum(local, name)
    return total / lax.psum(1, name) if how == "mean" else total


def count_true(flags: jax.Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Any:
    """Count the entries of all K/V heads, (batch, kv_heads, slots), on every device."""
    name = _AXIS.get()
    if name is None or axis != (1, 2):
        return NotImplemented
    local = ops.count_true.plain(flags, axis=axis, keepdims=keepdims)  # type: ignore[attr-defined]
    return lax.psum(local, name)


def finite_entries(x: jax.Array, keep: tuple[int, ...], below: float = math.inf) -> Any:
    """Find entries that are finite on every device; heads are the third axis."""
    name = _AXIS.get()
    if name is None or x.ndim < 3 or 2 in keep:
        return NotImplemented
    local = ops.finite_entries.plain(x, keep, below)  # type: ignore[attr-defined]
    return lax.pmin(local.astype(jnp.int32), name) > 0
