"""Half precision: products of bfloat16 or float16 that are added up in float32.

XLA multiplies the stored numbers as they are: half the memory traffic of float32 and, where a
processor has units for it, less time. A product of two such numbers fits into float32.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array
from attendre_core.eager.rounded import rounded_key, rounded_query
from attendre_core.ops.dense import masked_softmax
from attendre_core.ops.pairs import Pairs, visible_pairs

__all__ = ["attend"]


def attend(pairs: Pairs, value: Array) -> Array:
    """Attend with a single term; rotated queries and keys are rounded to the stored dtype.

    Weights and scores stay float32.
    """
    half = jnp.finfo(pairs.terms[0].plain_key.dtype).bits < 32
    if not half or len(pairs.terms) > 1:
        return NotImplemented
    weights = masked_softmax(_logits(pairs), visible_pairs(pairs), pairs.sink)
    batch, heads, group, count, slots = weights.shape
    rows = weights.reshape(batch, heads, group * count, slots)
    return _product(rows, value, 2).reshape(batch, heads, group, count, value.shape[3])


def _logits(pairs: Pairs) -> Array:
    query, key = rounded_query(pairs.terms[0], pairs.scale), rounded_key(pairs.terms[0])
    batch, heads, group, count, dim = query.shape
    flat = _product(query.reshape(batch, heads, group * count, dim), key, 3) * pairs.scale
    result = flat.reshape(batch, heads, group, count, key.shape[2])
    if pairs.limit is not None:
        result = pairs.limit * jnp.tanh(result / pairs.limit)
    return result if pairs.bias is None else result + pairs.added


def _product(rows: Array, entries: Array, axis: int) -> Array:
    """Contract the last axis of rows with one axis of entries, for each row and head."""
    return lax.dot_general(
        rows, entries, (((3,), (axis,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32
    )
