"""Sums of logits in compiled code, where no value may be read.

::

    queries by position        6     7     8     9
    sums of those from here on q6789 q789  q89   q9    0
    a key at position 8        ........... q89 · k .......... seen by the queries at 8 and 9

The sum of w q.k over the queries that see a key is (sum of w q).k, and in a causal chunk the
queries that see a key are those at or after its position. So each key takes one of the sums: no
query is multiplied with a key, and nothing depends on how many keys are in the chunk itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from attendre_core.backend import Array
from attendre_core.eager import sums
from attendre_core.ops.pairs import Pairs
from attendre_jax import clamped
from attendre_jax.kernels import gather_slots

__all__ = ["causal_sums", "sum_logits"]

_LAST = 2**31 - 1
#: Sums of queries are computed in float32, also where products are rounded by default.
_EXACT = lax.Precision.HIGHEST


def sum_logits(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum queries before multiplying; decline a bias or a mask."""
    if len(pairs.terms) > 1:
        return clamped.sum_logits(pairs, weight)
    traced = isinstance(pairs.key_position, jax.core.Tracer)
    if not pairs.causal or not traced or not pairs.is_plain or pairs.near is not None:
        return sums.sum_logits(pairs, weight)
    return causal_sums(pairs, weight)


def causal_sums(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum the logits of a single term for each key over the queries at or after its position."""
    query, key = pairs.terms[0].query, pairs.terms[0].key
    kind = jnp.promote_types(query.dtype, jnp.float32)
    factor = pairs.query_valid.astype(kind)
    factor = factor if weight is None else factor * weight
    at = pairs.key_position
    if query.shape[3] == 1:
        total = (query.astype(kind) * factor[:, None, None, :, None])[:, :, :, 0, :]
        seen = at[:, :, None, :] <= pairs.query_position
        return jnp.where(seen, jnp.matmul(total, key.mT.astype(kind)), 0)
    sorted_at = jnp.sort(pairs.query_position, axis=-1)[:, 0, 0, :]
    first = jnp.concatenate([sorted_at, jnp.full_like(sorted_at[:, :1], _LAST)], axis=-1)
    from_here = jnp.where(pairs.query_position[:, 0] >= first[..., None], factor[:, None, :], 0)
    suffix = jnp.matmul(from_here[:, None, None], query.astype(kind), precision=_EXACT)
    index = jnp.sum(sorted_at[:, None, :, None] < at[:, :, None, :], axis=2, dtype=jnp.int32)
    rows = gather_slots(suffix, index, axis=3)
    # On a CPU, XLA multiplies and adds many times faster as a product of matrices.
    return jnp.einsum("bgrmd,bgmd->bgrm", rows, key.astype(kind), precision=_EXACT)
