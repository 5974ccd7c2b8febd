"""ValueNorm: the entry with the shortest value is evicted first."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import decided, norms, real

__all__ = ["ValueNorm"]


@dataclass(frozen=True)
class ValueNorm(Policy):
    """Keep the entries with the longest values: the mean over heads of the norm of a value.

    The value norm of "InfiniPot-V: Memory-Constrained KV Cache Compression for Streaming Video
    Understanding" (arXiv 2506.15745): an entry with a short value adds little to any output.

    Notes
    -----
    Laws: scores never change, so what is kept does not depend on queries or on the chunk length;
    no query is ever paired with an entry on behalf of the policy.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.ValueNorm(), sinks=4).policy
    ValueNorm()
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return the norm of each new value."""
        return decided(norms(real(new.value, new.valid)), stored)
