"""How ``KeyValueMemory(retrieval="approximate")`` finds the top K: bisection, or `approx_max_k`.

Measured on a CPU (8 heads, 128 queries, K = 128), `jax.lax.approx_max_k` takes as long as an
exact `top_k`, 20 times as long as 16 passes of bisection; so bisection is the default. XLA has an
instruction of its own for it on TPUs, which we could not measure: there it can be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp

from attendre_core.backend import Array, force_generic
from attendre_core.errors import ConfigError
from attendre_core.ops.selection import approximate_top_k as bisection

__all__ = ["approx_max_k", "approximate_top_k"]

_RECALL: list[float | None] = [None]


@contextmanager
def approx_max_k(recall_target: float = 0.95) -> Iterator[None]:
    """Find approximate top Ks by `jax.lax.approx_max_k` in what is compiled inside.

    Functions compiled before keep what they were compiled with. Each query then attends to all
    of its exact top K and to a few more, as many as the K-th candidate lets in; bisection misses
    a few instead.

    Parameters
    ----------
    recall_target
        Expected share of the top K among the candidates.

    Examples
    --------
    >>> from attendre_core.ops import approximate_top_k
    >>> with approx_max_k():
    ...     top = approximate_top_k(jnp.asarray([[1.0, 3.0, 2.0]]), jnp.ones((1, 3)) > 0, 2, 16)
    >>> top.tolist()
    [[False, True, True]]
    """
    if not 0 < recall_target <= 1:
        raise ConfigError(
            f"approx_max_k: recall_target is {recall_target}, expected a share such as 0.95."
        )
    before = _RECALL[0]
    _RECALL[0] = recall_target
    try:
        yield
    finally:
        _RECALL[0] = before


def approximate_top_k(logits: Array, allowed: Array, k: int, passes: int) -> Array:
    """Mark the largest allowed entries of each row as `approx_max_k` says, or by bisection."""
    recall = _RECALL[0]
    if recall is None or k >= logits.shape[-1]:
        with force_generic():
            return bisection(logits, allowed, k, passes)
    masked = jnp.where(allowed, logits, -jnp.inf)
    found, _ = jax.lax.approx_max_k(masked, k, recall_target=recall)
    lowest = jnp.min(found, axis=-1, keepdims=True)
    return allowed & (masked >= lowest)
