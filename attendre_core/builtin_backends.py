"""NumPy, with kernels, and array-api-strict, which only ever runs the generic path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attendre_core import compiled
from attendre_core.backend import Array, Backend

__all__ = ["numpy_backend", "strict_backend"]


def numpy_backend() -> Backend:
    """Return the backend for `numpy.ndarray`."""
    compiled_kernels: dict[str, Callable[..., Any]] = {
        "admit": compiled.admit,
        "attend_top_k": compiled.attend_top_k,
    }
    return Backend(
        name="numpy",
        xp=np,
        array_types=(np.ndarray,),
        to_numpy=_same,
        from_numpy=_copied,
        share=_shared,
        is_concrete=_always,
        kernels={
            "lowest": _lowest,
            "masked_softmax": _masked_softmax,
            "kth_largest": _kth_largest,
            "gather_slots": _gather_slots,
            "exchange_slots": _exchange_slots,
            "surely_finite": _surely_finite,
            **(compiled_kernels if compiled.installed() else {}),
        },
        capabilities=frozenset({"float64"}),
    )


def strict_backend() -> Backend:
    """Return the backend for array-api-strict, the reference for what the standard allows."""
    import array_api_strict as xp

    return Backend(
        name="array_api_strict",
        xp=xp,
        array_types=(type(xp.zeros(1)),),
        to_numpy=np.asarray,
        from_numpy=lambda array, device=None: xp.asarray(array, device=device),
        is_concrete=_always,
        capabilities=frozenset({"float64"}),
    )


def _same(array: Array) -> Array:
    return array


def _copied(array: Any, device: Any = None) -> Array:
    return np.array(array)


def _shared(array: Any, dtype: str | None = None) -> Array:
    if dtype == "bfloat16":  # NumPy has no such type; float32 holds every value
        return (np.asarray(array).astype(np.uint32) << 16).view(np.float32)
    return array


def _always(array: Array) -> bool:
    return True


def _lowest(primary: Array | None, order: Array, count: int) -> Array:
    """Sort once by a key that holds both: the score's bits above, the order below."""
    if primary is None:
        key = order.astype(np.int64)
    elif primary.dtype == np.float32:
        bits = (primary + np.float32(0.0)).view(np.int32).astype(np.int64)  # -0.0 becomes 0.0
        bits = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = (bits << 32) + (order.astype(np.int64) + 2**31)
    else:
        return np.lexsort((order, primary), axis=-1)[..., :count]
    size = key.shape[-1]
    if 4 * count < size:
        part = np.argpartition(key, count - 1, axis=-1)[..., :count]
        ranked = np.argsort(np.take_along_axis(key, part, axis=-1), axis=-1)
        return np.take_along_axis(part, ranked, axis=-1)
    return np.argsort(key, axis=-1, stable=True)[..., :count]


def _kth_largest(x: Array, k: int) -> Array:
    place = x.shape[-1] - k
    return np.partition(x, place, axis=-1)[..., place : place + 1]


def _masked_softmax(logits: Array, allowed: Array | None) -> Array:
    """Do what the generic op does, in one array."""
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


def _lead_index(index: Array, lead: tuple[int, ...]) -> tuple[Array, ...]:
    """Return index arrays that pick whole entries: one for each leading axis, and the slots."""
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    axes = tuple(
        np.arange(n).reshape((1,) * i + (n,) + (1,) * (len(lead) - i)) for i, n in enumerate(lead)
    )
    return (*axes, index)


def _gather_slots(array: Array, index: Array, *, axis: int) -> Array:
    return array[_lead_index(index, array.shape[:axis])]


def _exchange_slots(
    arrays: Sequence[Array],
    index: Array,
    new: Sequence[Array],
    write: Array,
    *,
    axis: int,
    donate: bool,
) -> tuple[list[Array], list[Array]]:
    where = _lead_index(index, arrays[0].shape[:axis])
    whole = bool(write.all())
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    after, back = [], []
    for array, entries in zip(arrays, new, strict=True):
        displaced = array[where]
        changed = array if donate else array.copy()
        if whole:
            changed[where] = entries
            back.append(displaced)
        else:
            written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
            changed[where] = np.where(written, entries, displaced)
            back.append(np.where(written, displaced, entries))
        after.append(changed)
    return after, back


def _surely_finite(x: Array) -> bool:
    """Look at the sum of squares: one pass, and no array of flags."""
    if x.dtype not in (np.float32, np.float64):
        return False
    flat = x.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.dot(flat, flat)))
