"""The ops of `attendre_core.compiled` for tensors, eager and inside ``torch.compile``.

They read the memory of a tensor as NumPy sees it, so they are for the CPU, and for code that
records no gradient. A compiled graph holds them as one opaque operation; a graph that is exported
does not, because whoever loads it need not have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attendre_core import compiled
from attendre_core.ops.attention import attend_by_threshold
from attendre_torch import kernels
from attendre_torch.memory import numbers_of

__all__ = ["admit", "attend_top_k", "write_slots"]


def attend_top_k(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Do what `attendre_core.ops.attend_top_k` does; None where it cannot."""
    if logits.dtype != torch.float32 or logits.device.type != "cpu":
        return None
    if torch.is_grad_enabled() and (logits.requires_grad or value.requires_grad):
        return None
    if not torch.compiler.is_compiling():
        return _now(logits, value, allowed, k, order, passes)
    if torch.compiler.is_exporting():
        return None
    found: tuple[Tensor, Tensor, Tensor] = _later(logits, value, allowed, k, order, passes)
    return found


def _now(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor] | None:
    arrays = _arrays(logits, value, allowed, order)
    if arrays is None:
        return None
    numbers, values, flags, orders = arrays
    threads = torch.get_num_threads()
    found = compiled.attend_top_k(numbers, values, flags, k, orders, passes, threads=threads)
    if found is None:
        return None
    output, threshold, oldest = map(torch.from_numpy, found)
    return output, threshold, oldest


def admit(
    score: Tensor,
    valid: Tensor,
    pinned: Tensor,
    arrival: Tensor,
    come: Tensor,
    sigmas: float,
    ranges: tuple[float, float],
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Do what `attendre_core.compiled.admit` does, for tensors; None where it cannot."""
    arrays = _arrays(score, valid, pinned, arrival, come)
    if arrays is None:
        return None
    scores, real, pins, arrivals, new = arrays
    found = compiled.admit(scores, real, pins, arrivals, new, sigmas, ranges)
    if found is None:
        return None
    start, slot, write = map(torch.from_numpy, found)
    return start, slot, write


def write_slots(
    arrays: Sequence[Tensor],
    index: Tensor,
    new: Sequence[Tensor],
    write: Tensor,
    *,
    axis: int,
    donate: bool,
) -> list[Tensor]:
    """Write keys and values in machine code, all else as `attendre_torch.kernels.write_slots`."""
    tensors = (*arrays, *new)
    if donate and axis == 2 and index.ndim == 2 and all(x.ndim == 4 for x in tensors):
        written = _arrays(*tensors, index, write)
        count = len(arrays)
        if written is not None and compiled.write_entries(
            written[:count], written[-2], written[count:-2], written[-1]
        ):
            for array in arrays:
                if not array.is_inference():  # as any operation in place tells autograd
                    torch.autograd.graph.increment_version(array)
            return list(arrays)
    return kernels.write_slots(arrays, index, new, write, axis=axis, donate=donate)


def _arrays(*tensors: Tensor) -> list[Any] | None:
    """Return tensors as NumPy sees them; None if one of them is more than numbers."""
    recording, forward = torch.is_grad_enabled(), forward_ad._current_level >= 0
    arrays: list[Any] = []
    for x in tensors:
        if recording and x.requires_grad:
            return None
        if forward and forward_ad.unpack_dual(x).tangent is not None:
            return None
        numbers = numbers_of(x)
        if numbers is None:
            return None
        arrays.append(numbers)
    return arrays


def _operation(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    found = _now(logits, value, allowed, k, order, passes)
    if found is None:
        found = attend_by_threshold(logits, value, allowed, k, order, passes)
    return found


def _shapes(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Tell the compiler what comes out."""
    lead = logits.shape[:-1]
    return (
        logits.new_empty((*lead, value.shape[-1])),
        logits.new_empty((*lead, 1)),
        logits.new_empty((*lead, 1), dtype=torch.int32),
    )


_later = torch.library.custom_op(
    "attendre::attend_top_k",
    _operation,
    mutates_args=(),
    device_types="cpu",
    schema="(Tensor logits, Tensor value, Tensor allowed, int k, Tensor order, int? passes)"
    " -> (Tensor, Tensor, Tensor)",
)
_later.register_fake(_shapes)
