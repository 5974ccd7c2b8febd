"""Kernels for NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attendre_core.backend import Array

__all__ = [
    "count_true",
    "finite_entries",
    "gather_slots",
    "kth_largest",
    "lowest",
    "masked_softmax",
    "running_count",
    "write_slots",
]


def lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Sort once by a key that holds both: the score's bits above, the order below."""
    if primary is None:
        key = order.astype(np.int64)
    elif primary.dtype == np.float32:
        bits = (primary + np.float32(0.0)).view(np.int32).astype(np.int64)  # -0.0 becomes 0.0
        bits = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = (bits << 32) + (order.astype(np.int64) + 2**31)
    else:
        return np.lexsort((order, primary), axis=-1)[..., :count]
    if 0 < 4 * count < key.shape[-1]:
        part = np.argpartition(key, count - 1, axis=-1)[..., :count]
        ranked = np.argsort(np.take_along_axis(key, part, axis=-1), axis=-1)
        return np.take_along_axis(part, ranked, axis=-1)
    return np.argsort(key, axis=-1, stable=True)[..., :count]


def kth_largest(x: Array, k: int) -> Array:
    """Select without sorting."""
    place = x.shape[-1] - k
    return np.partition(x, place, axis=-1)[..., place : place + 1]


def masked_softmax(logits: Array, allowed: Array | None) -> Array:
    """Compute in one array, and without a mask where everything is allowed."""
    if allowed is None or allowed.all():
        weights = logits - np.max(logits, axis=-1, keepdims=True)
    else:
        weights = np.where(allowed, logits, np.asarray(-np.inf, dtype=logits.dtype))
        top = np.max(weights, axis=-1, keepdims=True)
        top[top == -np.inf] = 0
        np.subtract(weights, top, out=weights)
    np.exp(weights, out=weights)
    total = np.sum(weights, axis=-1, keepdims=True)
    total[total == 0] = 1
    return np.divide(weights, total, out=weights)


def count_true(flags: Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum flags as they are."""
    return np.sum(flags, axis=axis, keepdims=keepdims, dtype=np.int32)


def running_count(flags: Array) -> Array:
    """Sum flags as they are."""
    return np.cumsum(flags, axis=-1, dtype=np.int32)


def finite_entries(x: Array, keep: tuple[int, ...]) -> Array:
    """Look at the sum of squares first: one pass, and no array of flags."""
    if x.dtype not in (np.float32, np.float64):
        return NotImplemented
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.isfinite(np.dot(flat, flat)):
            return NotImplemented
    return np.ones([x.shape[axis] for axis in keep], dtype=np.bool_)


def _entries(index: Array, lead: tuple[int, ...]) -> tuple[Array, ...]:
    """Return index arrays that pick whole entries: one for each leading axis, and the slots."""
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    axes = tuple(
        np.arange(n).reshape((1,) * i + (n,) + (1,) * (len(lead) - i)) for i, n in enumerate(lead)
    )
    return (*axes, index)


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take whole entries by index."""
    return array[_entries(index, array.shape[:axis])]


def write_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool = False,
) -> list[Array]:
    """Write whole entries by index, in place when donated."""
    where = _entries(index, arrays[0].shape[:axis])
    everywhere = bool(write.all())
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    after = []
    for array, entries in zip(arrays, new, strict=True):
        changed = array if donate else array.copy()
        if not everywhere:
            written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
            entries = np.where(written, entries, array[where])
        changed[where] = entries
        after.append(changed)
    return after
