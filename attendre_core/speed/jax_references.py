"""The references that a step is measured against, written directly in JAX."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from attendre_core.backend import Array
from attendre_core.numba_kernels import installed
from attendre_core.speed.steps import Variant
from attendre_jax.foreign import machine_code

__all__ = [
    "HandWritten",
    "attention_variants",
    "compiled",
    "compiled_step",
    "dense_attention",
    "fused_attention",
    "gathered_attention",
    "inference",
    "step_variants",
]

#: Does nothing: JAX records nothing for gradients unless a function is differentiated.
inference = nullcontext


def dense_attention(query: Array, key: Array, value: Array) -> Array:
    """Attend by matrix product, softmax, matrix product; all arrays (batch, heads, n, dim)."""
    logits = query @ jnp.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5
    return jax.nn.softmax(logits, axis=-1) @ value


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with XLA."""
    result: Callable[..., Any] = jax.jit(function)
    return result


def step_variants() -> Iterator[Variant]:
    """Yield the ways in which a step with top K can run."""
    for name, context in attention_variants():
        yield Variant(f"compiled step {name}", context, lambda _, step: compiled_step(step))


def attention_variants() -> Iterator[tuple[str, Any]]:
    """Yield the ways in which attention to the top K can run."""
    if installed():
        yield "in machine code", machine_code
    yield "by XLA", nullcontext


fused_attention = compiled(dense_attention)


@partial(jax.jit, static_argnums=3)
def gathered_attention(query: Array, key: Array, value: Array, top_k: int) -> Array:
    """Attend to the top K by gathering their values; similarities are computed only once."""
    logits = query @ jnp.swapaxes(key, -1, -2) * query.shape[-1] ** -0.5
    best, index = jax.lax.top_k(logits, top_k)
    rows = jax.vmap(jax.vmap(lambda v, i: v[i]))(value, index)
    return jnp.einsum("bhsk,bhskd->bhsd", jax.nn.softmax(best, axis=-1), rows)


def compiled_step(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a step that may overwrite its state, the first argument."""
    result: Callable[..., Any] = jax.jit(function, donate_argnums=0)
    return result


class HandWritten:
    """LRA-sum with initial score mu over a full memory, as one would write it for only this case.

    Its output is right only once the memory is full.
    """

    def __init__(self, size: int, heads: int, dim: int, seq: int) -> None:
        self.state = (
            jnp.zeros((1, heads, size, dim)),
            jnp.zeros((1, heads, size, dim)),
            jnp.arange(size) - size,
            jnp.full((size,), -1e30),
            jnp.zeros((), dtype=jnp.int32),
        )
        self._step = jax.jit(_step, donate_argnums=0)

    def __call__(self, chunk: Any) -> Array:
        """Insert a chunk, evict, attend, score."""
        self.state, out = self._step(self.state, chunk.query, chunk.key, chunk.value)
        return out


def _step(state: Any, query: Array, key: Array, value: Array) -> Any:
    keys, values, position, score, clock = state
    query, key, value = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))
    seq, scale = key.shape[2], key.shape[3] ** -0.5
    filled = position >= 0
    count = jnp.maximum(filled.sum(), 1)
    start = jnp.where(filled, score, 0.0).sum() / count
    _, _, slots = jax.lax.sort((score, position, jnp.arange(score.shape[0])), num_keys=2)
    slot = slots[:seq]
    better = start >= score[slot]
    keys = keys.at[:, :, slot].set(jnp.where(better[:, None], key, keys[:, :, slot]))
    values = values.at[:, :, slot].set(jnp.where(better[:, None], value, values[:, :, slot]))
    position = position.at[slot].set(jnp.where(better, clock + jnp.arange(seq), position[slot]))
    out = dense_attention(query, keys, values)
    total = query.sum(2, keepdims=True) * scale
    score = (total @ jnp.swapaxes(keys, -1, -2)).sum((0, 1, 2))
    score = jnp.where(position >= 0, score, -1e30)
    return (keys, values, position, score, clock + seq), jnp.swapaxes(out, 1, 2)
