"""Attention as a flax nnx module. Needs flax: ``pip install 'attendre-core[flax]'``."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

try:
    from flax import nnx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "attendre_jax.nnx: flax is not installed. Install it with: pip install "
        "'attendre-core[flax]', or use attendre_jax.AttendreAttention, which needs only jax.",
        name=error.name,
    ) from error

from attendre_core.backend import Array
from attendre_core.layer.records import LayerOutput, LayerState
from attendre_jax import attention

__all__ = ["AttendreAttention", "Streaming"]

_NAMES = ("query", "key", "value", "out", "table")


class AttendreAttention(nnx.Module):  # type: ignore[misc]
    """Self-attention over a memory of fixed size; the state is explicit, as in nnx's RNN cells.

    ``state, out = attention(state, x)``, as in `attendre_jax.AttendreAttention`, whose arrays are
    the parameters (`nnx.Param`) of this module.

    Parameters
    ----------
    dim, heads
        Width of input and output, number of query heads.
    rngs
        Its stream ``params`` initialises the parameters.
    **settings
        As in `attendre_jax.AttendreAttention.create`.

    Examples
    --------
    >>> attention = AttendreAttention(32, heads=4, memory=16, rngs=nnx.Rngs(0))
    >>> state, out = attention(attention.init_state(batch=2), jnp.ones((2, 8, 32)))
    >>> out.value.shape
    (2, 8, 32)
    """

    def __init__(self, dim: int, heads: int, *, rngs: nnx.Rngs, **settings: Any) -> None:
        drawn = attention.AttendreAttention.create(rngs.params(), dim, heads, **settings)
        self.layer = drawn.layer
        for name in _NAMES:
            array = getattr(drawn, name)
            setattr(self, name, None if array is None else nnx.Param(array))

    @property
    def pytree(self) -> attention.AttendreAttention:
        """The current parameters as an `attendre_jax.AttendreAttention`."""
        params = {name: getattr(self, name) for name in _NAMES}
        arrays = {name: None if p is None else p[...] for name, p in params.items()}
        return attention.AttendreAttention(**arrays, layer=self.layer)

    @property
    def delay(self) -> int:
        """N: how many positions late the output comes."""
        return self.layer.delay

    def init_state(self, batch: int, *, chunk: int | None = None, dtype: Any = None) -> LayerState:
        """Make an empty state; ``chunk`` as in `AttendreLayer.init`."""
        return self.pytree.init_state(batch, chunk=chunk, dtype=dtype)

    def __call__(
        self, state: LayerState, x: Array, position: Array | None = None, valid: Array | None = None
    ) -> tuple[LayerState, LayerOutput]:
        """Read one chunk, (batch, seq, dim)."""
        return self.pytree(state, x, position, valid)

    def flush(self, state: LayerState) -> tuple[LayerState, LayerOutput]:
        """Let all waiting queries attend: the last N positions, in order."""
        return self.pytree.flush(state)

    def run(self, x: Array, **options: Any) -> Array:
        """Read a whole input; options as in `attendre_jax.AttendreAttention.run`."""
        return self.pytree.run(x, **options)


class Streaming(nnx.Module):  # type: ignore[misc]
    """An `AttendreAttention` that keeps its own state: ``out = streaming(x)``.

    The state consists of `nnx.Cache` variables, which nnx transforms propagate.

    Parameters
    ----------
    attention
        The module that attends.
    batch, chunk, dtype
        As in `AttendreAttention.init_state`.

    Examples
    --------
    >>> inner = AttendreAttention(32, heads=4, memory=16, rngs=nnx.Rngs(0))
    >>> streaming = Streaming(inner, batch=2)
    >>> for _ in range(3):
    ...     out = nnx.jit(lambda module, x: module(x))(streaming, jnp.ones((2, 8, 32)))
    >>> int(streaming.state.kv.clock[0])
    24
    """

    def __init__(
        self,
        attention: AttendreAttention,
        batch: int,
        *,
        chunk: int | None = None,
        dtype: Any = None,
    ) -> None:
        self.attention = attention
        leaves, shape = jax.tree.flatten(attention.init_state(batch, chunk=chunk, dtype=dtype))
        self._shape = shape
        self._leaves = nnx.List([nnx.Cache(leaf) for leaf in leaves])

    @property
    def state(self) -> LayerState:
        """The current state."""
        state: LayerState = jax.tree.unflatten(self._shape, [leaf[...] for leaf in self._leaves])
        return state

    def set_state(self, new: LayerState) -> None:
        """Continue from another state, as `state` returned it."""
        for leaf, value in zip(self._leaves, jax.tree.leaves(new), strict=True):
            leaf[...] = value

    def __call__(
        self, x: Array, position: Array | None = None, valid: Array | None = None
    ) -> LayerOutput:
        """Read one chunk, (batch, seq, dim)."""
        state, out = self.attention(self.state, x, position, valid)
        self.set_state(state)
        return out

    def flush(self) -> LayerOutput:
        """Let all waiting queries attend: the last N positions, in order."""
        state, out = self.attention.flush(self.state)
        self.set_state(state)
        return out

    def reset(self, rows: Array | None = None) -> None:
        """Empty the rows where ``rows``, boolean (batch,), is True, or all of them."""
        state = self.state
        if rows is None:
            rows = jnp.ones_like(state.kv.valid[:, 0])
        self.set_state(self.attention.layer.reset(state, rows))
