"""The two passes with the matrix of all pairs: for other devices, and for derivatives."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from attendre_core.backend import wide
from attendre_core.eager.fusing import Mask
from attendre_core.ops.dense import logits_of, mix, pool_queries

__all__ = ["attend_rows", "pool_columns"]


def attend_rows(
    query: jax.Array, key: jax.Array, value: jax.Array | None, mask: Mask, *, scale: float
) -> tuple[jax.Array | None, jax.Array]:
    """Attend; see `attendre_jax.fused.passes.attend_rows`."""
    allowed = _allowed(mask)
    logits = logits_of(query, key) * scale
    some = jnp.any(allowed, axis=-1, keepdims=True)
    # Rows with nothing allowed get finite numbers first: infinity would have a derivative of NaN.
    logits = jnp.where(allowed, logits, jnp.where(some, -jnp.inf, 0.0))
    sums = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    output = None
    if value is not None:
        output = mix(jnp.where(allowed, jnp.exp(logits - sums), 0.0), value)
        output = output.astype(jnp.promote_types(query.dtype, value.dtype))
    return output, jnp.where(some, sums, jnp.inf)[..., 0]


def pool_columns(
    query: jax.Array,
    key: jax.Array,
    mask: Mask,
    sums: jax.Array | None,
    weight: jax.Array | None,
    *,
    how: str,
    scale: float,
) -> jax.Array:
    """Pool over queries; see `attendre_jax.fused.passes.pool_columns`."""
    amounts = logits_of(query, key) * scale
    if sums is not None:
        amounts = jnp.exp(amounts - sums[..., None])
    result: jax.Array = pool_queries(
        amounts, _allowed(mask), how, None if weight is None else wide(weight)
    )
    return result


def _allowed(mask: Mask) -> jax.Array:
    """Return which pairs are allowed, (batch, 1 or G, 1, queries, slots)."""
    allowed = mask.key_time[:, :, None, None, :] <= mask.query_time[:, None, None, :, None]
    if mask.query_document is not None and mask.key_document is not None:
        own = mask.query_document[:, None, None, :, None]
        allowed = allowed & (mask.key_document[:, :, None, None, :] == own)
    return allowed
