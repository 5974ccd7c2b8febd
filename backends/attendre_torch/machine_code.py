"""The Numba kernels for tensors, in eager code and, for top-K attention, inside ``torch.compile``.

They access a tensor's memory through NumPy, so they work on the CPU, and only where no gradient is
recorded; on an accelerator they call those of `attendre_torch.launches`. A compiled graph contains
top-K attention as one opaque operation. An exported graph does not, because it may be loaded where
Numba is not installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attendre_core import numba_kernels
from attendre_core.backend import machine_code_allowed
from attendre_core.ops.dense import attend_top_k as plain_op
from attendre_torch import kernels, launches
from attendre_torch.looking import launched, numbers_of

__all__ = ["admit", "attend_top_k", "mean_less_deviations", "write_slots"]


def attend_top_k(
    logits: Tensor,
    value: Tensor,
    allowed: Tensor,
    k: int,
    order: Tensor,
    passes: int | None = None,
) -> Any:
    """Attend to the top K; decline gradients, and all but float32 on the CPU."""
    if launched(logits):
        return launches.attend_top_k(logits, value, allowed, k, order, passes)
    if not machine_code_allowed():
        return NotImplemented
    if logits.dtype != torch.float32 or logits.device.type != "cpu":
        return NotImplemented
    if torch.is_grad_enabled() and (logits.requires_grad or value.requires_grad):
        return NotImplemented
    if not torch.compiler.is_compiling():
        return _now(logits, value, allowed, k, order, passes)
    if torch.compiler.is_exporting():
        return NotImplemented
    found: tuple[Tensor, Tensor, Tensor] = _later(logits, value, allowed, k, order, passes)
    return found


def _now(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    threads = torch.get_num_threads()

    def attend(numbers: Any, values: Any, flags: Any, orders: Any) -> Any:
        return numba_kernels.attend_top_k(
            numbers, values, flags, k, orders, passes, threads=threads
        )

    found: tuple[Tensor, Tensor, Tensor] = _on_arrays(attend, logits, value, allowed, order)
    return found


def mean_less_deviations(score: Tensor, counted: Tensor, deviations: float) -> Tensor:
    """Score new entries."""
    if launched(score):
        return launches.mean_less_deviations(score, counted, deviations)

    def start(scores: Any, flags: Any) -> Any:
        found = numba_kernels.mean_less_deviations(scores, flags, deviations)
        return found if found is NotImplemented else (found,)

    found = _on_arrays(start, score, counted)
    return found if found is NotImplemented else found[0]


def admit(
    primary: Tensor, order: Tensor, new_primary: Tensor, new_order: Tensor
) -> tuple[Tensor, Tensor]:
    """Pair new entries with slots."""
    if launched(primary):
        few: tuple[Tensor, Tensor] = launches.admit(primary, order, new_primary, new_order)
        return few
    found: tuple[Tensor, Tensor] = _on_arrays(
        numba_kernels.admit, primary, order, new_primary, new_order
    )
    return found


def _on_arrays(function: Callable[..., Any], *tensors: Tensor) -> Any:
    """Call a kernel for NumPy arrays; decline tensors that `_arrays` cannot convert."""
    arrays = _arrays(*tensors)
    if arrays is None:
        return NotImplemented
    found = function(*arrays)
    return found if found is NotImplemented else tuple(map(torch.from_numpy, found))


def write_slots(
    arrays: Sequence[Tensor],
    index: Tensor,
    new: Sequence[Tensor],
    write: Tensor,
    *,
    axis: int,
    donate: bool = False,
) -> list[Tensor]:
    """Write donated keys and values by Numba, all else by `attendre_torch.kernels`."""
    if launched(index):
        return launches.write_slots(arrays, index, new, write, axis=axis, donate=donate)
    tensors = (*arrays, *new)
    if donate and axis == 2 and index.ndim == 2 and all(x.ndim == 4 for x in tensors):
        written = _arrays(*tensors, index, write)
        count = len(arrays)
        if written is not None and numba_kernels.write_entries(
            written[:count], written[-2], written[count:-2], written[-1]
        ):
            for array in arrays:
                if not array.is_inference():  # as any in-place operation does
                    torch.autograd.graph.increment_version(array)
            return list(arrays)
    return kernels.write_slots(arrays, index, new, write, axis=axis, donate=donate)


def _arrays(*tensors: Tensor) -> list[Any] | None:
    """Return tensors as NumPy arrays; None if a gradient is recorded or one is unreadable."""
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
    found: Any = _now(logits, value, allowed, k, order, passes)
    if found is NotImplemented:
        found = plain_op.plain(logits, value, allowed, k, order, passes)  # type: ignore[attr-defined]
    return found  # type: ignore[no-any-return]


def _shapes(
    logits: Tensor, value: Tensor, allowed: Tensor, k: int, order: Tensor, passes: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return tensors of the shapes and dtypes of the result, for the compiler."""
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
