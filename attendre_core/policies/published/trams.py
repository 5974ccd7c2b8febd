"""TRAMS: the key with the smallest component along (1, ..., 1) is evicted first."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import decided, real

__all__ = ["TRAMS"]


@dataclass(frozen=True)
class TRAMS(Policy):
    """Keep the keys k with the largest cos(k, 1) times their norm, where 1 is the vector of ones.

    The score of "TRAMS: Training-free Memory Selection for Long-range Language Modeling" (arXiv
    2310.15494), which guesses how large a key's logits will be before any query is known. The
    product is the key's component along 1: the sum of its numbers over the root of their count.

    Notes
    -----
    Laws: what is kept does not depend on the chunk length, nor on a positive factor that all keys
    are multiplied with. Two things differ from the original. It takes k in the space of the hidden
    states, after a product with the query projection, in which queries share a direction; a policy
    does not know that projection, so here k is the key itself. And it selects which entries of a
    larger memory take part in attention; here what is not selected is evicted for good.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=1, policy=at.TRAMS())
    >>> state = memory.init(batch=1, heads=1, head_dim=4)
    >>> chunk = np.asarray([[4.0, -4, 4, -4], [1, 1, 1, 1]], dtype=np.float32)[None, :, None, :]
    >>> state, _ = memory.insert(state, chunk, chunk)
    >>> state.position[0].tolist(), state.score[0].tolist()
    ([1], [2.0])
    """

    compares_keys = True

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the component of each new key along the vector of ones."""
        key = real(new.key, new.valid)
        xp = namespace_of(key)
        return decided(xp.sum(key, axis=-1, dtype=key.dtype) * key.shape[-1] ** -0.5, stored)
