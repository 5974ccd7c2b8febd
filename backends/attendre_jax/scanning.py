"""`jax.lax.scan` over chunks: one compiled step for inputs of any length.

``jax.lax.scan(layer.step, state, chunks)`` works as it is. This module adds what training needs:
steps that are recomputed in the backward pass, and truncated back-propagation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.chunks import in_order, join
from attendre_core.layer.records import Chunk, LayerState
from attendre_jax.chunks import joined_chunks, split_chunks

__all__ = ["chunked_attention", "compiled_step", "scan_chunks"]

Step = Callable[[Any, Any], tuple[Any, Any]]


def scan_chunks(
    step: AttendreLayer | Step,
    state: Any,
    chunks: Any,
    *,
    encoding_params: Any = None,
    remat: bool = False,
    truncate: int | None = None,
) -> tuple[Any, Any]:
    """Run a step over all chunks.

    Parameters
    ----------
    step
        A layer, or any ``step(state, chunk) -> (state, out)``.
    state
        The state before the first chunk.
    chunks
        Nested arrays with the chunks on their first axis, as `split_chunks` makes them.
    encoding_params
        Learned arrays of a layer's position scheme.
    remat
        Recompute each step in the backward pass (`jax.checkpoint`): only the states between the
        chunks are stored.
    truncate
        Gradients reach back over at most this many chunks: the state is detached before chunk
        ``truncate``, ``2 * truncate``, ... None never detaches.

    Returns
    -------
    state, outputs
        The state after the last chunk; the outputs of all steps on a new first axis.

    Examples
    --------
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8), at.DataOnlyMemory(4))
    >>> state = layer.init(batch=1, heads=1, head_dim=2, xp=jnp)
    >>> x = jnp.ones((1, 10, 1, 2))
    >>> whole = at.Chunk(x, x, x, valid=jnp.ones((1, 10), dtype=bool))
    >>> state, out = scan_chunks(layer, state, split_chunks(whole, 4))
    >>> out.value.shape, out.position[out.valid].tolist()
    ((3, 1, 4, 1, 2), [0, 1, 2, 3, 4, 5])
    """
    if truncate is not None:
        checks.whole_number(
            "scan_chunks", "truncate", truncate, least=1, hint="None never cuts gradients."
        )
    run = _step_of(step, encoding_params)
    if remat:
        # Inside a scan, common subexpressions cannot be merged with the forward pass anyway.
        run = jax.checkpoint(run, prevent_cse=False)
    if truncate is None:
        result: tuple[Any, Any] = jax.lax.scan(run, state, chunks)
        return result
    count = jax.tree.leaves(chunks)[0].shape[0]
    first = jnp.arange(count) % truncate == 0

    def cut(state: Any, numbered: tuple[Array, Any]) -> tuple[Any, Any]:
        starts, chunk = numbered
        return run(_cut_where(starts, state), chunk)

    cut_result: tuple[Any, Any] = jax.lax.scan(cut, state, (first, chunks))
    return cut_result


def compiled_step(layer: AttendreLayer, *, donate: bool = True) -> Callable[..., Any]:
    """Compile ``step(state, chunk, encoding_params=None)`` of a layer.

    Parameters
    ----------
    donate
        The state that is passed in must not be used again: the new one reuses its buffers, which
        takes memory for one state instead of two and copies nothing.

    Examples
    --------
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8))
    >>> step, state = compiled_step(layer), layer.init(batch=1, heads=1, head_dim=2, xp=jnp)
    >>> x = jnp.ones((1, 4, 1, 2))
    >>> after, out = step(state, at.Chunk(x, x, x))
    >>> state.kv.key.is_deleted(), after.kv.key.is_deleted()
    (True, False)
    """

    def step(state: LayerState, chunk: Chunk, encoding_params: Any = None) -> Any:
        return layer.step(state, chunk, encoding_params=encoding_params, donate=donate)

    compiled: Callable[..., Any] = jax.jit(step, donate_argnums=(0,) if donate else ())
    return compiled


def chunked_attention(
    layer: AttendreLayer,
    query: Array,
    key: Array,
    value: Array,
    *,
    chunk: int = 128,
    position: Array | None = None,
    valid: Array | None = None,
    document: Array | None = None,
    encoding_params: Any = None,
    remat: bool = False,
    truncate: int | None = None,
) -> Array:
    """Attend over a whole input through a memory of fixed size; a pure function.

    A drop-in replacement for full attention in a model: the same shapes in and out, in input
    order, without delay. The work grows with the length, not with its square.

    Parameters
    ----------
    layer
        Memories, top K, mask and position scheme.
    query
        (batch, time, heads, head_dim).
    key, value
        (batch, time, kv_heads, dim).
    chunk
        S: positions read at a time.
    position, valid, document
        (batch, time), as in `Chunk`.
    encoding_params, remat, truncate
        As in `scan_chunks`.

    Returns
    -------
    array
        (batch, time, heads, value_dim); zeros where not valid.

    Examples
    --------
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(8, at.LFA()), at.DataOnlyMemory(4))
    >>> x = jax.random.normal(jax.random.key(0), (2, 11, 4, 8))
    >>> chunked_attention(layer, x, x, x, chunk=4).shape
    (2, 11, 4, 8)
    """
    batch, time = query.shape[:2]
    if valid is None:
        valid = jnp.ones((batch, time), dtype=bool)
    place = jnp.broadcast_to(jnp.arange(time, dtype=jnp.int32), (batch, time))
    whole = Chunk(query, key, value, position, valid, None, document, (place,))
    state = layer.init(
        batch=batch, heads=query.shape[2], kv_heads=key.shape[2], head_dim=query.shape[3],
        xp="jax", dtype=query.dtype, value_dim=value.shape[3], documents=document is not None,
        metadata=(place,), chunk=chunk,
    )  # fmt: skip
    state, out = scan_chunks(
        layer, state, split_chunks(whole, chunk),
        encoding_params=encoding_params, remat=remat, truncate=truncate,
    )  # fmt: skip
    out = joined_chunks((out.value, out.metadata[0], out.valid))
    if layer.q_memory is None:
        return out[0][:, :time]
    _, rest = layer.flush(state, encoding_params=encoding_params)
    late = (rest.value, rest.metadata[0], rest.valid)
    return in_order([join([out, late])], time)


def _step_of(step: AttendreLayer | Step, encoding_params: Any) -> Step:
    if not isinstance(step, AttendreLayer):
        if encoding_params is not None:
            raise ConfigError(
                "scan_chunks: encoding_params belong to a layer, but a function was given. Let "
                "the function pass them on."
            )
        return step
    layer = step

    def run(state: LayerState, chunk: Chunk) -> tuple[Any, Any]:
        return layer.step(state, chunk, encoding_params=encoding_params)

    return run


def _cut_where(flag: Array, state: Any) -> Any:
    """Stop gradients where the flag is True; values stay the same."""

    def cut(leaf: Array) -> Array:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        return jnp.where(flag, jax.lax.stop_gradient(leaf), leaf)

    return jax.tree.map(cut, state)
