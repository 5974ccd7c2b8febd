"""Kernels that read values to skip work: breaking ties, filling, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attendre_core.backend import Array, backend_of, namespace_of
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import kth_largest
from attendre_core.ops.selection import top_k_threshold as _op

__all__ = ["among_top_k", "fill", "push_slots", "top_k_threshold"]

_LAST = 2**31 - 1


def top_k_threshold(masked: Array, k: int, order: Array) -> Any:
    """Return the k-th value; break ties only if more than k entries reach it."""
    if not backend_of(masked).is_concrete(masked):
        return NotImplemented
    xp = namespace_of(masked)
    threshold = kth_largest(masked, k)
    number = count_true(masked >= threshold, axis=-1, keepdims=True)
    if bool(xp.any(number > k)):
        return _op.plain(masked, k, order)  # type: ignore[attr-defined]
    return threshold, xp.full_like(number, -_LAST)


def among_top_k(logits: Array, threshold: Array, oldest: Array, order: Array) -> Array:
    """Compare once if all entries equal to a threshold fit."""
    if not backend_of(oldest).is_concrete(oldest):
        return NotImplemented
    if bool(namespace_of(oldest).any(oldest > -_LAST)):
        return NotImplemented
    return logits >= threshold


def fill(x: Array, flags: Array, number: float) -> Array:
    """Return ``x`` itself if no flag is True."""
    if not backend_of(flags).is_concrete(flags) or bool(namespace_of(flags).any(flags)):
        return NotImplemented
    return x


def push_slots(
    arrays: Sequence[Array], new: Sequence[Array], primary: Array | None, order: Array
) -> Any:
    """Concatenate and slice if the entries are in order."""
    if primary is not None or not backend_of(order).is_concrete(order):
        return NotImplemented
    xp = namespace_of(order)
    if not bool(xp.all(order[..., 1:] >= order[..., :-1])):
        return NotImplemented
    slots, count = arrays[0].shape[1], new[0].shape[1]
    kept, gone = [], []
    for array, entries in zip(arrays, new, strict=True):
        first = max(count - slots, 0)
        kept.append(xp.concat([array[:, count:, ...], entries[:, first:, ...]], axis=1))
        gone.append(xp.concat([array[:, :count, ...], entries[:, :first, ...]], axis=1))
    return kept, gone
