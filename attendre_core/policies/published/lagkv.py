"""LagKV: within a block, the entry that differs least from the next block is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import by_head
from attendre_core.policies.published.parts import decided, real

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["LagKV"]

#: Score of an entry whose next block is not complete; all others are at most 1.
_WAITING = 2.0


@dataclass(frozen=True)
class LagKV(Policy):
    """Score each block of entries once, by how its keys and values vary against the next block.

    The rule of "LagKV: Lag-Relative Information of the KV Cache Tells Which Tokens Are Important"
    (arXiv 2504.04704). Each channel of a key is scaled so that the keys of the next block span 0 to
    1; the standard deviation over channels goes through a softmax over the block; the same for
    values; the score is the mean of both.

    Parameters
    ----------
    lag
        The least length of a block. A block ends with the first chunk that completes it.

    Notes
    -----
    Laws: one scale and shift per channel, for all keys, changes nothing; no pair of query and key
    is computed. Until the next block is complete an entry ranks above all that have a score, so a
    memory needs room for more than two blocks (with ``present="visible"``, one). The original
    keeps the same share of every block. Here blocks compete with each other: the scores of a block
    add up to 1, so a longer block has lower ones.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.LagKV(lag=16), present="visible", sinks=4).policy
    LagKV(lag=16)
    """

    compares_keys = True

    lag: int = 128

    def __post_init__(self) -> None:
        if self.lag < 1:
            raise ConfigError(f"LagKV: lag is {self.lag}, expected 1 or more entries, such as 128.")

    def init(self, stored: Stored) -> Array:
        """Return the arrival number with which the latest block begins, (batch,)."""
        return namespace_of(stored.arrival).zeros_like(stored.clock)

    def enter(self, stored: Stored, new: New) -> Array:
        """Rank new entries above all that have been scored."""
        return namespace_of(stored.score).full_like(stored.score[..., 0], _WAITING)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Score what waited for the latest block, if that is complete."""
        xp = namespace_of(stored.score)
        latest = stored.arrival >= attention.along_slots(stored.policy_state)
        reference = by_head(stored.valid & latest)
        waiting = stored.valid & ~latest & (stored.score == _WAITING)
        spread = [
            ops.masked_softmax(_deviation(real(x, stored.valid), reference), by_head(waiting))
            for x in (attention.key, attention.value)
        ]
        score = decided(0.5 * (spread[0] + spread[1]), stored)
        now = attention.along_slots(self._is_full(stored, attention))
        return xp.where(waiting & now, score, stored.score)

    def remember(self, stored: Stored, attention: Attention) -> Array:
        """Begin a new block after a complete one."""
        xp = namespace_of(stored.arrival)
        full = self._is_full(stored, attention)
        return xp.where(full, stored.clock, stored.policy_state)

    def _is_full(self, stored: Stored, attention: Attention) -> Array:
        some = namespace_of(stored.arrival).any(attention.valid, axis=-1)
        return some & (stored.clock - stored.policy_state >= self.lag)


def _deviation(x: Array, reference: Array) -> Array:
    """Return the deviation over channels of (batch, kv_heads, n, dim), scaled by a reference."""
    xp, flags = namespace_of(x), reference[..., None]
    low = xp.min(xp.where(flags, x, float("inf")), axis=2, keepdims=True)
    span = xp.max(xp.where(flags, x, -float("inf")), axis=2, keepdims=True) - low
    varies = span > 0
    low = xp.where(varies, low, xp.zeros_like(low))
    scaled = (x - low) / xp.where(varies, span, xp.ones_like(span))
    scaled = ops.bounded(xp.where(varies, scaled, xp.zeros_like(scaled)), 1e6)
    return xp.std(scaled, axis=-1, correction=min(1, x.shape[-1] - 1))
