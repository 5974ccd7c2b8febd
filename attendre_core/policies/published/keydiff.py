"""KeyDiff: the key most like the others is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import beside, mean_unit, newcomers, units
from attendre_core.policies.published.parts import decided, norms

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["KeyDiff", "unlike"]

#: A mean shorter than this has no direction to speak of; the order within a head is the same.
_SHORTEST = 0.01


@dataclass(frozen=True)
class KeyDiff(Policy):
    """Keep the keys with the lowest cosine to the mean direction of all keys of their head.

    The rule of "KeyDiff: Key Similarity-Based KV Cache Eviction for Long-Context LLM Inference in
    Resource-Constrained Environments" (arXiv 2504.15364): the score is -cos(k, m), where m is the
    mean of the keys over their norms. Its authors, too, read prompts block by block through a
    cache of fixed size.

    Notes
    -----
    Laws: a positive factor for each key changes nothing; no pair of query and key is computed.
    The mean is over what is stored, so it moves: stored entries are scored anew when queries have
    attended to them, new ones when they arrive, among stored and new ones. The original compares
    keys after rotation by their positions; here they are compared without positions. Where heads
    decide together (not ``per_head``, which the original does), their cosines are averaged.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=2, policy=at.KeyDiff())
    >>> state = memory.init(batch=1, heads=1, head_dim=2)
    >>> chunk = np.asarray([[1.0, 0], [2, 0], [0, 1]], dtype=np.float32)[None, :, None, :]
    >>> state, _ = memory.insert(state, chunk, chunk)
    >>> sorted(state.position[0].tolist())
    [1, 2]
    """

    compares_keys = True

    def enter(self, stored: Stored, new: New) -> Array:
        """Score new keys among all keys, stored and new."""
        key, _, valid = beside(stored, new)
        return newcomers(decided(unlike(key, valid), stored), stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Score the stored keys again: the mean has moved."""
        return decided(unlike(attention.key, stored.valid), stored)


def unlike(key: Array, valid: Array) -> Array:
    """Return minus the cosine of each key to the mean unit key, (batch, kv_heads, n)."""
    unit = units(key, valid)
    mean, _ = mean_unit(unit, valid)
    xp, length = namespace_of(unit), norms(mean)
    length = xp.where(length < _SHORTEST, _SHORTEST, length)
    return -xp.sum(unit * mean, axis=-1, dtype=unit.dtype) / length
