"""The ops of `attendre_core.compiled` for tensors, eager and inside ``torch.compile``.

They read the memory of a tensor as NumPy sees it, so they are for the CPU, and for code that
records no gradient. A compiled graph holds them as one opaque operation; a graph that is exported
does not, because whoever loads it need not have them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attendre_core import compiled
from attendre_core.ops.attention import attend_by_threshold
from attendre_torch.memory import numbers_of

__all__ = ["attend_top_k"]


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
    tensors = (logits, value, allowed, order)
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors[:2]):
        return None
    arrays: list[Any] = [numbers_of(x) for x in tensors]
    if any(x is None for x in arrays):
        return None
    numbers, values, flags, orders = arrays
    threads = torch.get_num_threads()
    found = compiled.attend_top_k(numbers, values, flags, k, orders, passes, threads=threads)
    if found is None:
        return None
    output, threshold, oldest = map(torch.from_numpy, found)
    return output, threshold, oldest


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
