"""Launch the Triton kernels that keep the records of a memory.

They run in eager code on an accelerator; compiled code fuses small operations by itself. On the
meta device, where nothing is computed, a launch is one operator that returns the same shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from attendre_core.backend import fused_mode
from attendre_core.ops.admission import SNAP_RANGES
from attendre_torch.fused.dispatch import has_triton, runs_on
from attendre_torch.fused.launch import count_of, on_device, power_of_2
from attendre_torch.looking import launched

__all__ = [
    "OPTIONS",
    "can",
    "count_evicted",
    "keys",
    "mean_less_deviations",
    "rotate",
    "write_entries",
]

_TYPES = (Tensor, torch.nn.Parameter)
#: Products and sums are rounded one by one, as in the plain bodies.
OPTIONS = {"num_warps": 4, "num_stages": 1, "enable_fp_fusion": False}


def can(*tensors: Tensor) -> bool:
    """Return whether the kernels run on these tensors, here and now."""
    first, mode = tensors[0], fused_mode()
    if not launched(first) or any(type(x) not in _TYPES or x.numel() == 0 for x in tensors):
        return False
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return False
    if first.is_meta:
        return mode != "off" and has_triton()
    return runs_on(first, mode)


def _operator(schema: str, shapes: Callable[..., Any], *changed: str) -> Callable[..., Any]:
    """Return a decorator that makes a launch an operator where tensors are on the meta device."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        name = f"attendre::{function.__name__}"
        operator = torch.library.custom_op(name, function, mutates_args=changed, schema=schema)
        operator.register_fake(shapes)

        @wraps(function)
        def call(first: Tensor, *rest: Any) -> Any:
            return operator(first, *rest) if first.is_meta else function(first, *rest)

        return call

    return of


@_operator(
    "(Tensor score, Tensor counted, float deviations) -> Tensor",
    lambda score, *_: score.new_empty(score.shape[:-1]),
)
def mean_less_deviations(score: Tensor, counted: Tensor, deviations: float) -> Tensor:
    """Score new entries as `attendre_core.ops.mean_less_deviations` does; scores are float32."""
    slots = score.shape[-1]
    start = score.new_empty(score.shape[:-1])
    of_range, of_largest = SNAP_RANGES
    with on_device(score):
        _kernel("mean_less_deviations")[(start.numel(),)](
            score.contiguous(), _bytes(counted.contiguous()), start, slots, float(deviations),
            of_range=of_range, of_largest=of_largest, block=min(1024, power_of_2(slots)),
            **OPTIONS,
        )  # fmt: skip
    return start


@_operator(
    "(Tensor primary, Tensor order) -> Tensor",
    lambda primary, order: primary.new_empty(primary.shape, dtype=torch.int64),
)
def keys(primary: Tensor, order: Tensor) -> Tensor:
    """Return distinct integers as `attendre_torch.kernels.keys` does."""
    key = primary.new_empty(primary.shape, dtype=torch.int64)
    block = min(256, power_of_2(key.numel()))
    with on_device(primary):
        _kernel("keys")[(count_of(key.numel(), block),)](
            primary.contiguous(), order.contiguous(), key, key.numel(), block=block, **OPTIONS
        )
    return key


@_operator(
    "(Tensor x, Tensor position, Tensor frequency) -> Tensor",
    lambda x, *_: x.new_empty(x.shape),
)
def rotate(x: Tensor, position: Tensor, frequency: Tensor) -> Tensor:
    """Rotate as `attendre_core.ops.rotate_at` does; ``x`` is float32, with up to five axes."""
    half = frequency.shape[0]
    rotated = x.new_empty(x.shape)
    position = position.expand(x.shape[:-1])
    x = x if x.stride(-1) == 1 else x.contiguous()
    while x.ndim < 5:
        x, position = x[None], position[None]
    rows = position.numel()
    half_block = power_of_2(half)
    row_block = max(1, min(64, 512 // half_block))
    with on_device(x):
        _kernel("rotate")[(count_of(rows, row_block),)](
            x, position, frequency, rotated, *x.stride()[:4], *position.stride(), *x.shape[1:4],
            rows, half, row_block=row_block, half_block=half_block, **OPTIONS,
        )  # fmt: skip
    return rotated


@_operator(
    "(Tensor(a!) key, Tensor(b!) value, Tensor new_key, Tensor new_value, Tensor slot, "
    "Tensor write) -> ()",
    lambda *_: None,
    "key",
    "value",
)
def write_entries(
    key: Tensor, value: Tensor, new_key: Tensor, new_value: Tensor, slot: Tensor, write: Tensor
) -> None:
    """Write entries into contiguous keys and values, in place; slots are (batch, 1 or G, S)."""
    batch, heads, slots, dim = key.shape
    count, width = new_key.shape[2], new_value.shape[3]
    new_key, new_value = (x if x.stride(3) == 1 else x.contiguous() for x in (new_key, new_value))
    slot, write = (x.expand(batch, heads, count) for x in (slot, _bytes(write)))
    block = min(16, power_of_2(count))
    with on_device(key):
        _kernel("write_entries")[(batch * heads * count_of(count, block),)](
            key, value, new_key, new_value, slot, write, *new_key.stride()[:3],
            *new_value.stride()[:3], *slot.stride(), *write.stride(), heads, slots, count, dim,
            width, entry_block=block, key_block=power_of_2(dim), value_block=power_of_2(width),
            **OPTIONS,
        )  # fmt: skip


@_operator(
    "(Tensor evictions, Tensor refusals, Tensor valid, Tensor arrival, Tensor slot, Tensor write, "
    "Tensor new_valid, Tensor new_arrival, Tensor since) -> Tensor",
    lambda evictions, *_: evictions.new_empty((2, *evictions.shape)),
)
def count_evicted(
    evictions: Tensor,
    refusals: Tensor,
    valid: Tensor,
    arrival: Tensor,
    slot: Tensor,
    write: Tensor,
    new_valid: Tensor,
    new_arrival: Tensor,
    since: Tensor,
) -> Tensor:
    """Return the counts of `attendre_core.ops.count_evicted`, (2, batch)."""
    counts = evictions.new_empty((2, *evictions.shape))
    valid, arrival = _by_head(_bytes(valid)).contiguous(), _by_head(arrival).contiguous()
    entries = [_by_head(x) for x in (slot, _bytes(write), _bytes(new_valid), new_arrival)]
    batch, heads, slots = valid.shape
    count = slot.shape[-1]
    strides = [stride for x in entries for stride in x.stride()]
    with on_device(evictions):
        _kernel("count_evicted")[(batch,)](
            evictions.contiguous(), refusals.contiguous(), valid, arrival, *entries,
            since.contiguous(), counts, *strides, batch, heads, slots, count,
            block=min(1024, power_of_2(heads * count)), **OPTIONS,
        )  # fmt: skip
    return counts


def _kernel(name: str) -> Any:
    from attendre_torch.fused import record_kernels

    return getattr(record_kernels, name)


def _bytes(flags: Tensor) -> Tensor:
    return flags.view(torch.uint8)


def _by_head(x: Tensor) -> Tensor:
    return x if x.ndim == 3 else x[:, None]
