"""Three eviction policies of about ten lines each; docs/guides/own_policy.md explains them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import attendre_core as at
from attendre_core.backend import Array, namespace_of

if TYPE_CHECKING:
    from attendre_core.policies.base import New

__all__ = ["KeyDiff", "RecentWeight", "ValueNorm"]


@dataclass(frozen=True)
class ValueNorm(at.Policy):
    """Keep the entries whose values have the largest norm, averaged over heads."""

    def enter(self, stored: at.Stored, new: New) -> Array:
        """Return one score per new entry; it never changes afterwards."""
        xp = namespace_of(new.value)
        norm = xp.sqrt(xp.sum(new.value**2, axis=-1))  # (batch, kv_heads, seq)
        return norm if stored.score.ndim == 3 else xp.mean(norm, axis=1)


@dataclass(frozen=True)
class KeyDiff(at.Policy):
    """Keep the keys that are least like the mean key (after KeyDiff, arXiv 2504.15364)."""

    def enter(self, stored: at.Stored, new: New) -> Array:
        """Score the new keys against all keys, stored and new."""
        xp = namespace_of(new.key)
        keys = xp.concat([stored.key, new.key], axis=2)
        valid = xp.concat([stored.valid, new.valid], axis=-1)
        return unlike_mean(keys, valid)[..., stored.valid.shape[-1] :]

    def observe(self, stored: at.Stored, attention: at.Attention) -> Array:
        """Score the stored keys again: the mean has moved."""
        return unlike_mean(attention.key, stored.valid)


def unlike_mean(key: Array, valid: Array) -> Array:
    """Return minus the cosine of each key to the mean of the valid ones, shaped like valid."""
    xp = namespace_of(key)
    real = valid[..., None] if valid.ndim == 3 else valid[:, None, :, None]
    unit = xp.where(real, key, xp.zeros_like(key))  # padding may hold anything
    unit = unit / (xp.sqrt(xp.sum(unit**2, axis=-1, keepdims=True)) + 1e-6)
    mean = xp.sum(unit, axis=2, keepdims=True)  # its direction is all that counts
    mean = mean / (xp.sqrt(xp.sum(mean**2, axis=-1, keepdims=True)) + 1e-6)
    score = -xp.sum(unit * mean, axis=-1)  # (batch, kv_heads, slots)
    return score if valid.ndim == 3 else xp.mean(score, axis=1)


@dataclass(frozen=True)
class RecentWeight(at.Policy):
    """Keep what the last queries attend to (after SnapKV, arXiv 2404.14469).

    Parameters
    ----------
    window
        How many of the last positions count.
    """

    window: int = 16

    def observe(self, stored: at.Stored, attention: at.Attention) -> Array:
        """Return the softmax weights of the last queries, summed, averaged over heads."""
        xp = namespace_of(stored.score)
        recent = attention.position > attention.latest[:, None] - self.window
        recent = recent[:, None, None, :, None]  # to (batch, G, R, queries, slots)
        weights = xp.where(recent, attention.weights, xp.zeros_like(attention.weights))
        return attention.pool(weights, queries="sum", heads="mean")
