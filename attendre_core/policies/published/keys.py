"""What the policies that compare keys with each other share."""

from __future__ import annotations

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Stored
from attendre_core.policies.published.parts import norms, real

__all__ = ["beside", "by_head", "mean_unit", "newcomers", "units"]


def by_head(flags: Array) -> Array:
    """Shape (batch, n) or (batch, kv_heads, n) as (batch, 1 or kv_heads, n)."""
    return flags if flags.ndim == 3 else flags[:, None, :]


def beside(stored: Stored, new: New) -> tuple[Array, Array, Array]:
    """Return keys, values and validity of the stored entries with the new ones behind them."""
    xp = namespace_of(stored.score)
    return (
        xp.concat([stored.key, new.key], axis=2),
        xp.concat([stored.value, new.value], axis=2),
        xp.concat([stored.valid, new.valid], axis=-1),
    )


def newcomers(scores: Array, stored: Stored) -> Array:
    """Return the part of scores of all entries, as `beside` orders them, that is the new ones'."""
    return scores[..., stored.valid.shape[-1] :]


def units(key: Array, valid: Array) -> Array:
    """Return keys of length 1, and zeros where an entry is not valid or a key is zero."""
    key = real(key, valid)
    xp, length = namespace_of(key), norms(key)
    return key / xp.where(length > 0, length, xp.ones_like(length))[..., None]


def mean_unit(unit: Array, valid: Array) -> tuple[Array, Array]:
    """Return the mean of unit keys, (batch, kv_heads, 1, dim), and of how many, (batch, ., 1)."""
    xp = namespace_of(unit)
    count = xp.astype(ops.count_true(by_head(valid), axis=-1, keepdims=True), unit.dtype)
    total = xp.sum(unit, axis=2, keepdims=True, dtype=unit.dtype)
    return total / xp.maximum(count, xp.ones_like(count))[..., None], count
