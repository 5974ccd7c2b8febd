"""Selection where values may be read: ties are broken only where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attendre_core.backend import Array, backend_of, namespace_of
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import kth_largest, top_k_threshold as _op

__all__ = ["sort_slots", "top_k_threshold"]

_LAST = 2**31 - 1


def top_k_threshold(masked: Array, k: int, order: Array) -> tuple[Array, Array]:
    """Return the K-th value; look for the oldest entry that fits only if more are equal to it."""
    if not backend_of(masked).is_concrete(masked):
        return NotImplemented
    xp = namespace_of(masked)
    threshold = kth_largest(masked, k)
    number = count_true(masked >= threshold, axis=-1, keepdims=True)
    if bool(xp.any(number > k)):
        return _op.plain(masked, k, order)  # type: ignore[attr-defined, no-any-return]
    return threshold, xp.full_like(number, -_LAST)


def sort_slots(arrays: Sequence[Array], primary: Array | None, order: Array) -> Any:
    """Leave entries that are in order as they are."""
    if primary is not None or not backend_of(order).is_concrete(order):
        return NotImplemented
    if not bool(namespace_of(order).all(order[..., 1:] >= order[..., :-1])):
        return NotImplemented
    return list(arrays)
