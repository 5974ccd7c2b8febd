"""Knorm: the key with the largest norm is evicted first."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import decided, norms, real

__all__ = ["Knorm"]


@dataclass(frozen=True)
class Knorm(Policy):
    """Keep the keys with the smallest Euclidean norm, averaged over the heads that decide together.

    The rule of "A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression" (arXiv
    2406.11430): keys of small norm tend to get much attention. The score is minus the norm, it
    never changes, and no query is read.

    Notes
    -----
    Laws: what is kept does not depend on the chunk length, nor on a positive factor that all keys
    are multiplied with. Rotations do not change norms, so keys without positions do as well as the
    original's. The original evicts per head and leaves the first layers whole; ``per_head`` (as in
    the preset ``"Knorm"``) is the former, `MemoryConfig.layer_policies` can express the latter.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=2, policy=at.Knorm())
    >>> state = memory.init(batch=1, heads=1, head_dim=1)
    >>> chunk = np.asarray([3.0, -1.0, 2.0], dtype=np.float32)[None, :, None, None]
    >>> state, _ = memory.insert(state, chunk, chunk)
    >>> sorted(state.position[0].tolist())
    [1, 2]
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return minus the norm of each new key."""
        return decided(-norms(real(new.key, new.valid)), stored)
