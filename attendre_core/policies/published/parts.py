"""What several published policies share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attendre_core import ops
from attendre_core.backend import Array, namespace_of, wide

if TYPE_CHECKING:
    from attendre_core.policies.base import Stored

__all__ = ["decided", "norms", "real", "zero"]


def zero(stored: Stored) -> Array:
    """Return 0 for each row, the score of new entries that start from nothing."""
    return namespace_of(stored.score).zeros_like(stored.score[..., 0])


def real(x: Array, valid: Array) -> Array:
    """Return (batch, kv_heads, n, dim) in float32 or wider, with 0 where an entry is not valid.

    Parameters
    ----------
    valid
        (batch, n) or (batch, kv_heads, n); what is stored beside it may be anything.
    """
    x, xp = wide(x), namespace_of(x)
    flags = valid[..., None] if valid.ndim == 3 else valid[:, None, :, None]
    return xp.where(flags, x, xp.zeros_like(x))


def norms(x: Array) -> Array:
    """Return the lengths of vectors, (..., dim) to (...)."""
    xp = namespace_of(x)
    return xp.sqrt(xp.sum(x * x, axis=-1, dtype=x.dtype))


def decided(x: Array, stored: Stored, how: str = "mean") -> Array:
    """Combine (batch, kv_heads, n) over the heads that decide together: shaped as scores are.

    Parameters
    ----------
    how
        ``"sum"``, ``"max"`` or ``"mean"``.
    """
    return ops.over_heads(x[:, :, None, ...], how, per_head=stored.score.ndim == 3)
