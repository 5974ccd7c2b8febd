"""Kernels with few launches, for eager code on an accelerator.

A step works on small records: there, an operation costs what its launch costs, whatever it
computes. No value is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attendre_core.ops.admission import SNAP_RANGES
from attendre_core.ops.dense import mix
from attendre_torch import kernels, namespace
from attendre_torch.fused import records
from attendre_torch.looking import launched, readable

__all__ = [
    "admit",
    "attend_top_k",
    "count_evicted",
    "fill",
    "finite_entries",
    "lowest",
    "mean_less_deviations",
    "rotate_at",
    "top_k_threshold",
    "write_slots",
]

Kernel = Callable[..., Any]
#: The key of an entry of rank -inf with the highest order; see `attendre_torch.kernels.keys`.
_LAST = 2**31 - 1
_NEVER = -2139095040 * 2**32 + 2**31 - 1
_DENSE = torch.contiguous_format


def or_else(few: Kernel, other: Kernel | None) -> Kernel:
    """Return a kernel that is the first on an accelerator and the other one elsewhere."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        first = args[1] if args[0] is None else args[0]
        if launched(first[0] if type(first) in (list, tuple) else first):
            return few(*args, **kwargs)
        return NotImplemented if other is None else other(*args, **kwargs)

    return kernel


def fill(x: Tensor, flags: Tensor, number: float) -> Any:
    """Fill without a tensor for the number; where flags may be read, only if one is True."""
    if type(flags) is Tensor and readable(flags):
        return NotImplemented if flags.any() else x
    return _filled(x, flags, number) if launched(x) else NotImplemented


def _filled(x: Tensor, flags: Tensor, number: float) -> Tensor:
    shape = torch.broadcast_shapes(x.shape, flags.shape)
    return x.expand(shape).masked_fill(flags, number)


def finite_entries(x: Tensor, keep: tuple[int, ...], below: float = math.inf) -> Tensor:
    """Compare the largest absolute value, which is NaN if there is a NaN."""
    axes = [axis for axis in range(x.ndim) if axis not in keep]
    largest = torch.linalg.vector_norm(x, math.inf, dim=axes) if axes else x.abs()
    return largest < below


def mean_less_deviations(score: Tensor, counted: Tensor, deviations: float) -> Tensor:
    """Give scores that do not count a value that changes nothing, instead of masking each sum."""
    same = score.dtype == torch.float32 and score.shape == counted.shape
    if same and records.can(score, counted):
        start: Tensor = records.mean_less_deviations(score, counted, deviations)
        return start
    slots = score.shape[-1]
    number = counted.sum(-1, keepdim=True, dtype=score.dtype)
    highest = namespace.where(counted, score, -math.inf).amax(-1, keepdim=True)
    held = torch.where(counted, score, highest)
    below = held - highest
    mean = below.sum(-1, keepdim=True) / number
    start = mean
    if deviations:
        spread = torch.where(counted, below, mean).std(-1, correction=0, keepdim=True)
        start = torch.addcmul(mean, spread, number.rsqrt(), value=-deviations * math.sqrt(slots))
    start = highest + start
    of_range, of_largest = SNAP_RANGES
    largest = torch.linalg.vector_norm(held, math.inf, dim=-1, keepdim=True)
    near = torch.sub(largest * of_largest, below.amin(-1, keepdim=True), alpha=of_range)
    close = (held - start).abs() <= near
    same = namespace.where(close, held, math.inf).amin(-1, keepdim=True)
    start = torch.where(same < math.inf, same, start)
    return start.nan_to_num(0.0, math.inf, -math.inf)[..., 0]  # NaN: the mean of none


def admit(primary: Tensor, order: Tensor, new_primary: Tensor, new_order: Tensor) -> Any:
    """Compare keys of both sides, which are made together; decline all but float32."""
    if primary.dtype != torch.float32:
        return NotImplemented
    slots, count = order.shape[-1], new_order.shape[-1]
    if records.can(primary, order, new_primary, new_order):
        old, new = records.keys(primary, order), records.keys(new_primary, new_order)
    else:
        both = torch.cat([primary, new_primary], dim=-1), torch.cat([order, new_order], dim=-1)
        old, new = kernels.keys(*both).split([slots, count], dim=-1)
    worst = torch.topk(old, count, dim=-1, largest=False, sorted=True)
    best = torch.sort(new, dim=-1, descending=True)
    higher = best.values > worst.values.clamp_min(_NEVER)
    slot = torch.empty_like(worst.indices).scatter_(-1, best.indices, worst.indices)
    return slot, torch.empty_like(higher).scatter_(-1, best.indices, higher)


def lowest(primary: Tensor | None, order: Tensor, count: int) -> Tensor:
    """Select by a 64-bit key that is made in one launch where there is Triton."""
    if primary is None or primary.dtype != torch.float32 or not records.can(primary, order):
        return kernels.lowest(primary, order, count)
    key = records.keys(primary, order)
    return torch.topk(key, count, dim=-1, largest=False, sorted=True).indices


def rotate_at(x: Tensor, position: Tensor, frequency: Tensor) -> Any:
    """Rotate in one launch where there is Triton, else in six; decline transforms."""
    if torch.broadcast_shapes(position.shape, x.shape[:-1]) != x.shape[:-1]:
        return NotImplemented
    if x.dtype == torch.float32 and x.ndim <= 5 and records.can(x, position):
        return records.rotate(x, position, frequency)
    if torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return NotImplemented
    angle = position[..., None] * frequency
    sine, halves = angle.sin(), x.unflatten(-1, (2, -1))
    turned = torch.empty_like(x, memory_format=_DENSE).unflatten(-1, (2, -1))
    torch.mul(halves, angle.cos()[..., None, :], out=turned)
    turned[..., 0, :].addcmul_(halves[..., 1, :], sine, value=-1)
    turned[..., 1, :].addcmul_(halves[..., 0, :], sine)
    return turned.flatten(-2)


def count_evicted(
    counts: tuple[Tensor, Tensor],
    held: tuple[Tensor, Tensor],
    slot: Tensor,
    new: tuple[Tensor, Tensor],
    write: Tensor,
    since: Tensor,
) -> Any:
    """Count in one launch where there is Triton."""
    if not records.can(*counts, *held, slot, *new):
        return NotImplemented
    return tuple(records.count_evicted(*counts, *held, slot, write, *new, since))


def top_k_threshold(masked: Tensor, k: int, order: Tensor) -> tuple[Tensor, Tensor]:
    """Select the K-th value, and the order from which on values equal to it fit."""
    threshold, oldest, _ = _top_k(masked, k, order)
    return threshold, oldest


def _top_k(masked: Tensor, k: int, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return threshold, oldest order at it, and what is among the K largest."""
    threshold = torch.topk(masked, k, dim=-1, sorted=True).values[..., -1:]
    tied = namespace.where(masked == threshold, order.expand(masked.shape), -_LAST)
    rank = namespace.where(masked > threshold, _LAST, tied)
    oldest = torch.topk(rank, k, dim=-1, sorted=True).values[..., -1:]
    return threshold, oldest, rank >= oldest


def attend_top_k(
    logits: Tensor,
    value: Tensor,
    allowed: Tensor,
    k: int,
    order: Tensor,
    passes: int | None = None,
) -> Any:
    """Attend to the top K, with a softmax that gives zeros to rows without any; decline passes."""
    if passes is not None:
        return NotImplemented
    masked = namespace.where(allowed, logits, -math.inf)
    threshold, oldest, used = _top_k(masked.detach(), k, order)
    weights = torch.ops.aten._safe_softmax(namespace.where(used, masked, -math.inf), -1)
    return mix(weights, value), threshold, oldest


def write_slots(
    arrays: Sequence[Tensor],
    index: Tensor,
    new: Sequence[Tensor],
    write: Tensor,
    *,
    axis: int,
    donate: bool = False,
) -> list[Tensor]:
    """Gather, choose and scatter along the axis of slots; records of one size together."""
    lead = arrays[0].shape[:axis]
    index, write = kernels._aligned(index, lead), kernels._aligned(write, lead)
    if len(arrays) > 2 and all(array.ndim == axis + 1 for array in arrays):
        return _write_records(arrays, index, new, write)
    if axis == 2 and [x.ndim for x in arrays] == [4, 4] and records.can(*arrays, *new, index):
        return _write_entries(arrays, index, new, write, donate)
    after = []
    for array, entries in zip(arrays, new, strict=True):
        rest = (1,) * (array.ndim - axis - 1)
        place = index.reshape(index.shape + rest).expand(entries.shape)
        flags = write.reshape(write.shape + rest)
        values = torch.where(flags, entries, array.gather(axis, place))
        in_place = donate and not kernels._recorded(array, entries)
        put = array.scatter_ if in_place else array.scatter
        after.append(put(axis, place, values))
    return after


def _write_entries(
    arrays: Sequence[Tensor], index: Tensor, new: Sequence[Tensor], write: Tensor, donate: bool
) -> list[Tensor]:
    """Write keys and values in one launch."""
    after = [x if donate and x.is_contiguous() else x.clone(memory_format=_DENSE) for x in arrays]
    records.write_entries(*after, *new, index, write)
    for x in after:
        if not x.is_inference():  # as any in-place operation does
            torch.autograd.graph.increment_version(x)
    return after


#: Integers of the size of an element, as which records of several dtypes are written together.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _write_records(
    arrays: Sequence[Tensor], index: Tensor, new: Sequence[Tensor], write: Tensor
) -> list[Tensor]:
    """Write into several (..., slots) arrays: append the entries, then take what each slot holds.

    The results of one size of element are parts of one tensor.
    """
    slots, count = arrays[0].shape[-1], index.shape[-1]
    entry = namespace.arange(slots, slots + count, dtype=index.dtype, device=index.device)
    held = namespace.arange(slots, dtype=index.dtype, device=index.device)
    held = held.expand(arrays[0].shape)
    source = held.scatter(-1, index, torch.where(write, entry, index))
    after: list[Tensor] = list(arrays)
    for size, bits in _BITS.items():
        which = [i for i, array in enumerate(arrays) if array.dtype.itemsize == size]
        if not which:
            continue
        parts = [x.view(bits) for i in which for x in (arrays[i], new[i])]
        both = torch.cat(parts, dim=-1).unflatten(-1, (len(which), slots + count))
        taken = both.movedim(-2, 0).gather(-1, source.expand(len(which), *source.shape))
        for number, i in enumerate(which):
            after[i] = taken[number].view(arrays[i].dtype)
    return after
