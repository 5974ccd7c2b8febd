"""Approximate top K for ``KeyValueMemory(retrieval="approximate")``: bisection or `approx_max_k`.

On a CPU (8 heads, 128 queries, K = 128), `jax.lax.approx_max_k` takes as long as an exact `top_k`
and 20 times as long as 16 passes of bisection, so bisection is the default. On TPUs, where XLA has
a special instruction for it, we could not measure it; it can be chosen there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import jax
import jax.numpy as jnp

from attendre_core.backend import Array
from attendre_core.errors import ConfigError

__all__ = ["approx_max_k", "approximate_threshold"]

_RECALL: ContextVar[float | None] = ContextVar("approx_max_k", default=None)


@contextmanager
def approx_max_k(recall_target: float = 0.95) -> Iterator[None]:
    """Find the approximate top K by `jax.lax.approx_max_k` inside a ``with`` block.

    Functions that were compiled before are not affected. Each query attends to its exact top K
    and to a few more, all that reach the lowest of the K candidates; bisection misses a few
    instead.

    Parameters
    ----------
    recall_target
        Expected share of the exact top K among the candidates.

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
    token = _RECALL.set(recall_target)
    try:
        yield
    finally:
        _RECALL.reset(token)


def approximate_threshold(logits: Array, allowed: Array, k: int, passes: int) -> Array:
    """Return the lowest candidate of `jax.lax.approx_max_k`; decline unless it was chosen."""
    recall = _RECALL.get()
    if recall is None or k >= logits.shape[-1]:
        return NotImplemented
    masked = jnp.where(allowed, logits, -jnp.inf)
    found, _ = jax.lax.approx_max_k(masked, k, recall_target=recall)
    return jnp.min(found, axis=-1, keepdims=True)
