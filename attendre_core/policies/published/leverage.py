"""Leverage: the key that the others can best stand in for is evicted first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import beside, newcomers
from attendre_core.policies.published.parts import decided, real

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Leverage"]


@dataclass(frozen=True)
class Leverage(Policy):
    """Keep the keys with the largest ridge leverage, k' (K'K + c I)^-1 k over all keys K of a head.

    The part about keys of "Compactor: Calibrated Query-Agnostic KV Cache Compression with
    Approximate Leverage Scores" (arXiv 2507.08143). A leverage is between 0 and 1: near 1 for a
    key in a direction of its own, near 1/n for one of n equal keys.

    Parameters
    ----------
    ridge
        c as a share of the mean eigenvalue of K'K. Less damps weak directions less, but needs more
        iterations, and float32 loses digits below about 0.01.

    Notes
    -----
    Laws: the leverages of a head add up to less than the width of a key; one factor for all keys
    changes nothing; no pair of query and key is computed. K is what is stored, and the stored
    entries are scored anew when queries have attended to them. Keys are without positions, as in
    the original. The original approximates the leverages by a random sketch, and adds the attention
    within chunks of the prompt times the norms of values; here they are exact up to rounding (the
    inverse by a fixed number of Newton-Schulz products), and alone.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=2, policy=at.Leverage())
    >>> state = memory.init(batch=1, heads=1, head_dim=2)
    >>> chunk = np.asarray([[1.0, 0], [1, 0], [0, 1]], dtype=np.float32)[None, :, None, :]
    >>> state, _ = memory.insert(state, chunk, chunk)
    >>> sorted(state.position[0].tolist())
    [1, 2]
    """

    compares_keys = True

    ridge: float = 0.1

    def __post_init__(self) -> None:
        if not 1e-4 <= self.ridge < math.inf:
            raise ConfigError(
                f"Leverage: ridge is {self.ridge}, expected a share of the mean eigenvalue of at "
                "least 1e-4, such as 0.1."
            )

    def enter(self, stored: Stored, new: New) -> Array:
        """Score new keys among all keys, stored and new."""
        key, _, valid = beside(stored, new)
        return newcomers(decided(self._leverages(real(key, valid)), stored), stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Score the stored keys again: what can stand in for them has changed."""
        return decided(self._leverages(real(attention.key, stored.valid)), stored)

    def _leverages(self, key: Array) -> Array:
        """Return the leverages of (batch, kv_heads, n, dim), whose invalid keys are 0."""
        xp, dim = namespace_of(key), key.shape[-1]
        size = xp.max(xp.abs(key), axis=(2, 3), keepdims=True)
        key = key / xp.where(size > 0, size, xp.ones_like(size))
        mean = xp.sum(key * key, axis=(2, 3), keepdims=True, dtype=key.dtype) / dim
        key = key / xp.sqrt(xp.where(mean > 0, mean, xp.ones_like(mean)))
        number = numbers(dim, key)
        unit = xp.astype(number[:, None] == number[None, :], key.dtype)
        # The eigenvalues are in [ridge, dim + ridge]; each product squares the distance from 1.
        matrix = xp.matmul(xp.matrix_transpose(key), key) + self.ridge * unit
        inverse = unit * (2.0 / (dim + 2.0 * self.ridge))
        for _ in range(math.ceil(math.log2(9.0 * (dim + 2.0 * self.ridge) / self.ridge))):
            inverse = 2.0 * inverse - xp.matmul(inverse, xp.matmul(matrix, inverse))
        return xp.sum(xp.matmul(key, inverse) * key, axis=-1, dtype=key.dtype)
