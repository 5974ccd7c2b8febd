"""Kernels for NumPy: fewer calls and fewer arrays than the plain bodies."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from attendre_core.backend import Array, wide
from attendre_core.eager import selection, sums
from attendre_core.ops.admission import SNAP_RANGES
from attendre_core.ops.pairs import Pairs, visible_pairs

__all__ = [
    "admit",
    "attend",
    "bounded",
    "count_evicted",
    "count_true",
    "displaced",
    "fill",
    "finite_entries",
    "gather_slots",
    "kth_largest",
    "linear",
    "lowest",
    "masked_softmax",
    "mean_less_deviations",
    "over_heads",
    "push_slots",
    "rms_norm",
    "rotate_at",
    "rotate_halves",
    "running_count",
    "sum_logits",
    "table",
    "take_slots",
    "write_slots",
]


def lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Sort once, by a 64-bit key with the bits of ``primary`` above those of ``order``."""
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


def masked_softmax(logits: Array, allowed: Array | None, sink: Array | None = None) -> Array:
    """Compute in place, and without a mask if everything is allowed; decline a sink."""
    if sink is not None:
        return NotImplemented
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


def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Multiply by a view of the weight."""
    y = x @ weight.T
    return y if bias is None else y + bias


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Sum squares without the overhead of `numpy.mean`."""
    if x.dtype.itemsize < 4:
        return NotImplemented
    mean = np.add.reduce(x * x, axis=-1, keepdims=True) / x.dtype.type(x.shape[-1])
    return x / np.sqrt(mean + x.dtype.type(eps)) * weight


def count_true(flags: Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
    """Sum the booleans directly."""
    return np.sum(flags, axis=axis, keepdims=keepdims, dtype=np.int32)


def count_evicted(
    counts: tuple[Array, Array],
    held: tuple[Array, Array],
    slot: Array,
    new: tuple[Array, Array],
    write: Array,
    since: Array,
) -> tuple[Array, Array]:
    """Sum the booleans directly."""
    (evictions, refusals), axes = counts, tuple(range(1, slot.ndim))
    gone, arrival = (
        np.where(write, gather_slots(x, slot, axis=slot.ndim - 1), y)
        for x, y in zip(held, new, strict=True)
    )
    late = gone & (arrival >= since.reshape(since.shape + (1,) * len(axes)))
    return evictions + count_true(gone, axis=axes), refusals + count_true(late, axis=axes)


def running_count(flags: Array) -> Array:
    """Sum the booleans directly."""
    return np.cumsum(flags, axis=-1, dtype=np.int32)


def finite_entries(x: Array, keep: tuple[int, ...], below: float = math.inf) -> Array:
    """Check the sum of squares first: one pass, and no array of flags."""
    if x.dtype not in (np.float32, np.float64):
        return NotImplemented
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        if not np.dot(flat, flat) < below * below:
            return NotImplemented
    return np.ones([x.shape[axis] for axis in keep], dtype=np.bool_)


def _entries(index: Array, lead: tuple[int, ...]) -> tuple[Array, ...]:
    """Return index arrays that select whole entries: one per leading axis, and the slots."""
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    axes = [
        np.arange(n).reshape((1,) * i + (n,) + (1,) * (len(lead) - i)) for i, n in enumerate(lead)
    ]
    return (*axes, index)


def gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    """Take whole entries by index; an index of one row is shared by all leading axes."""
    if index.size == index.shape[-1]:
        return np.take(array, index.reshape(-1), axis=axis)
    return array[_entries(index, array.shape[:axis])]


def take_slots(arrays: Sequence[Array], index: Array, *, axis: int) -> list[Array]:
    """Take whole entries by index; all of them, in order, are the arrays as they are."""
    slots = arrays[0].shape[axis]
    if index.shape[-1] == slots and (index == np.arange(slots)).all():
        return list(arrays)
    return [gather_slots(array, index, axis=axis) for array in arrays]


def displaced(
    arrays: Sequence[Array], index: Array, new: Sequence[Array], write: Array, *, axis: int
) -> Any:
    """Take whole entries by index, if all of them are written."""
    if not write.all():
        return NotImplemented
    return [gather_slots(array, index, axis=axis) for array in arrays]


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


def push_slots(
    arrays: Sequence[Array], new: Sequence[Array], primary: Array | None, order: Array
) -> Any:
    """Concatenate and slice if the entries are in order, else call the shared kernel."""
    slots, count = arrays[0].shape[1], new[0].shape[1]
    if primary is not None or count > slots or (order[:, 1:] < order[:, :-1]).any():
        return selection.push_slots(arrays, new, primary, order)
    kept = []
    for array, entries in zip(arrays, new, strict=True):
        kept.append(np.concatenate([array[:, count:], entries], axis=1))
    return kept, [array[:, :count].copy() for array in arrays]


def fill(x: Array, flags: Array, number: float) -> Array:
    """Return ``x`` itself if no flag is True."""
    return np.where(flags, x.dtype.type(number), x) if flags.any() else x


def bounded(x: Array, bound: float) -> Array:
    """Replace NaN, then clip."""
    return np.clip(np.where(np.isnan(x), x.dtype.type(-bound), x), -bound, bound)


def mean_less_deviations(score: Array, counted: Array, deviations: float) -> Array:
    """Compute without masks; decline unless every score counts."""
    if not counted.all():
        return NotImplemented
    highest = score.max(axis=-1, keepdims=True)
    lowest = score.min(axis=-1, keepdims=True)
    number = score.dtype.type(score.shape[-1])
    below = score - highest
    mean = below.sum(axis=-1, keepdims=True) / number
    start = highest + mean
    if deviations:
        sigma = np.sqrt(((below - mean) ** 2).sum(axis=-1, keepdims=True) / number)
        start = highest + (mean - deviations * sigma)
    of_range, of_largest = SNAP_RANGES
    near = of_range * (highest - lowest) + of_largest * np.maximum(highest, -lowest)
    same = np.where(np.abs(score - start) <= near, score, np.inf).min(axis=-1, keepdims=True)
    return np.where(same < np.inf, same.astype(score.dtype), start)[..., 0]


def admit(
    primary: Array, order: Array, new_primary: Array, new_order: Array
) -> tuple[Array, Array]:
    """Sort both sides once and compare them pair by pair."""
    count = new_order.shape[-1]
    worst = lowest(primary, order, count)
    best = lowest(new_primary, new_order, count)[..., ::-1]
    slot = np.empty_like(worst)
    np.put_along_axis(slot, best, worst, axis=-1)
    held = np.take_along_axis(primary, slot, axis=-1)
    since = np.take_along_axis(order, slot, axis=-1)
    higher = (new_primary > held) | ((new_primary == held) & (new_order > since))
    return slot, higher & (new_primary > -np.inf)


def rotate_at(x: Array, position: Array, frequency: Array) -> Array:
    """Rotate with the kernel of `rotate_halves`."""
    angle = position.astype(x.dtype)[..., None] * frequency
    return rotate_halves(x, np.cos(angle), np.sin(angle))


def rotate_halves(x: Array, cosine: Array, sine: Array) -> Array:
    """Write both halves into one array."""
    half = cosine.shape[-1]
    left, right = x[..., :half], x[..., half:]
    rotated = np.empty(np.broadcast_shapes(x.shape, (*cosine.shape[:-1], 1)), dtype=x.dtype)
    np.subtract(left * cosine, right * sine, out=rotated[..., :half])
    np.add(right * cosine, left * sine, out=rotated[..., half:])
    return rotated


def attend(pairs: Pairs, value: Array) -> Array:
    """Attend with a single term; decline several terms, and a bias."""
    if len(pairs.terms) > 1 or not pairs.is_plain:
        return NotImplemented
    query, key = pairs.terms[0].query, pairs.terms[0].key
    batch, heads, group, count, dim = query.shape
    rows = np.matmul(query.reshape(batch, heads, group * count, dim), key.swapaxes(2, 3))
    rows = rows.reshape(batch, heads, group, count, -1)
    weights = masked_softmax(rows, visible_pairs(pairs))
    output = np.matmul(weights.reshape(batch, heads, group * count, -1), wide(value))
    return output.reshape(batch, heads, group, count, value.shape[3])


def sum_logits(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum the queries first if every query sees every key, else call the shared kernel."""
    if len(pairs.terms) > 1 or pairs.causal or not pairs.is_plain or pairs.near is not None:
        return sums.sum_logits(pairs, weight)
    query, key = pairs.terms[0].query, pairs.terms[0].key
    factor = pairs.query_valid.astype(query.dtype)
    factor = factor if weight is None else factor * weight
    total = np.matmul(factor[:, None, None, None, :], query)[:, :, :, 0, :]
    return np.matmul(total, key.swapaxes(2, 3))


def over_heads(x: Array, how: str = "sum", *, per_head: bool = False) -> Array:
    """Combine heads by a method of the array."""
    axes = (2,) if per_head else (1, 2)
    if how == "mean":
        return x.sum(axis=axes) / np.prod([x.shape[axis] for axis in axes], dtype=x.dtype)
    return getattr(x, how)(axis=axes)


def table(like: Array, make: Callable[..., Any], *spec: Hashable, dtype: Any) -> Array:
    """Make a table once for each dtype; it is read-only."""
    return _kept(make, spec, dtype)


@lru_cache(maxsize=256)
def _kept(make: Callable[..., Any], spec: tuple[Hashable, ...], dtype: Any) -> Array:
    made = np.array(make(*spec), dtype=dtype)
    made.flags.writeable = False
    return made
