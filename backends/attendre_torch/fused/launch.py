"""Launch the Triton kernels on tensors."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attendre_core.eager.fusing import Mask
from attendre_core.errors import ConfigError

__all__ = [
    "OPTIONS",
    "WIDEST",
    "Blocks",
    "attend_rows",
    "blocks_for",
    "check_interpreted",
    "count_of",
    "on_device",
    "pool_columns",
    "power_of_2",
]

#: The widest head that the kernels hold in registers.
WIDEST = 256
#: Bytes of a number, and the width of a head, to the largest blocks of queries and slots and the
#: warps of a program with which the compiler spills no register and needs at most 99 KiB of shared
#: memory, which is what the smallest GPUs of capability 8 have.
_LARGEST = {
    2: {64: (64, 64, 4), 128: (64, 64, 8), 256: (64, 32, 8)},
    4: {64: (64, 32, 8), 128: (32, 32, 8), 256: (16, 16, 4)},
}
#: What PyTorch calls the precision of float32 products, and what Triton calls it.
_PRECISION = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
#: The same for every version of Triton.
OPTIONS = {"num_stages": 2, "enable_fp_fusion": True}


class Blocks(NamedTuple):
    """How much one program works on at a time, and how many warps it has."""

    queries: int
    slots: int
    key: int
    value: int
    warps: int


def attend_rows(
    query: Tensor, key: Tensor, value: Tensor | None, mask: Mask, scale: float = 1.0
) -> tuple[Tensor | None, Tensor]:
    """Attend to all slots that the mask allows.

    Parameters
    ----------
    query, key, value
        (batch, G, R, queries, dim), (batch, G, slots, dim), (batch, G, slots, value_dim). Without
        values only the sums are computed.
    scale
        Multiplies the products of queries and keys.

    Returns
    -------
    output
        (batch, G, R, queries, value_dim), zeros where nothing is allowed; None without values.
    sums
        float32, (batch, G, R, queries): the logarithm of the sum of exponentials; infinity where
        nothing is allowed.
    """
    kernel, interpreted = _kernel("attend_rows")
    query, key = _rows_of(query, key)
    mask, mask_strides = _mask_arguments(mask)
    batch, heads, group, queries, dim = query.shape
    sums = query.new_empty((batch, heads, group, queries), dtype=torch.float32)
    output, width, value_strides = None, 1, (0, 0, 0)
    if value is not None:
        value = _dense(value)
        width, value_strides = value.shape[3], value.stride()[:3]
        dtype = torch.promote_types(query.dtype, value.dtype)
        output = query.new_empty((*sums.shape, width), dtype=dtype)
    blocks = blocks_for(group * queries, key.shape[2], dim, width, _bytes(query, value))
    with on_device(query):
        kernel[(batch * heads * count_of(group * queries, blocks.queries),)](
            query, key, value, output, sums, *mask, scale, *query.stride()[:4], *key.stride()[:3],
            *value_strides, *mask_strides, heads, group, queries, key.shape[2], dim, width,
            query_block=blocks.queries, slot_block=blocks.slots, key_block=blocks.key,
            value_block=blocks.value, precision=_precision(), upcast=interpreted,
            num_warps=blocks.warps, **OPTIONS,
        )  # fmt: skip
    return output, sums


def pool_columns(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    sums: Tensor | None,
    weight: Tensor | None,
    how: str,
    scale: float = 1.0,
) -> Tensor:
    """Pool over the queries that are allowed to see a slot.

    Parameters
    ----------
    query, key, scale
        As in `attend_rows`.
    sums
        Of `attend_rows`: pool softmax weights. None: pool logits.
    weight
        (batch, queries): multiplies what is pooled; None = 1.
    how
        ``"sum"``, ``"max"`` or ``"mean"``.

    Returns
    -------
    Tensor
        float32, (batch, G, R, slots); 0 where no query is allowed.
    """
    kernel, interpreted = _kernel("pool_columns")
    query, key = _rows_of(query, key)
    mask, mask_strides = _mask_arguments(mask)
    batch, heads, group, queries, dim = query.shape
    slots = key.shape[2]
    weight = None if weight is None else weight.to(torch.float32).contiguous()
    pooled = query.new_empty((batch, heads, group, slots), dtype=torch.float32)
    blocks = blocks_for(queries, slots, dim, 1, query.element_size())
    with on_device(query):
        kernel[(batch * heads * group * count_of(slots, blocks.slots),)](
            query, key, sums, weight, pooled, *mask, scale, *query.stride()[:4], *key.stride()[:3],
            *mask_strides, heads, group, queries, slots, dim,
            how=how, query_block=blocks.queries, slot_block=blocks.slots, key_block=blocks.key,
            precision=_precision(), upcast=interpreted, num_warps=blocks.warps, **OPTIONS,
        )  # fmt: skip
    return pooled


def blocks_for(rows: int, slots: int, dim: int, value_dim: int, item: int) -> Blocks:
    """Choose blocks that fit into registers and shared memory.

    Parameters
    ----------
    rows, slots
        How many there are of each.
    dim, value_dim
        The widths of keys and values.
    item
        Bytes of a number of the queries.
    """
    key, value = (max(16, power_of_2(width)) for width in (dim, value_dim))
    sizes = _LARGEST[item]
    most_rows, most_slots, warps = sizes[min(width for width in sizes if width >= max(key, value))]
    row_block = min(most_rows, max(16, power_of_2(rows)))
    return Blocks(row_block, min(most_slots, max(16, power_of_2(slots))), key, value, warps)


def _kernel(name: str) -> tuple[Any, bool]:
    """Return a kernel, and whether it is interpreted."""
    from attendre_torch.fused import triton_kernels

    kernel = getattr(triton_kernels, name)
    return kernel, type(kernel).__name__ == "InterpretedFunction"


def check_interpreted() -> None:
    """Raise if kernels are to be interpreted and Triton was imported without knowing it."""
    if not _kernel("attend_rows")[1]:
        raise ConfigError(
            "fused_kernels('interpreted'): Triton was imported without TRITON_INTERPRET=1 "
            f"(now {os.environ.get('TRITON_INTERPRET', 'unset')}). Set it before Python starts."
        )


def _precision() -> str:
    return _PRECISION[torch.get_float32_matmul_precision()]


def on_device(tensor: Tensor) -> Any:
    """Return a context in which the device of a tensor is the current one."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def _rows_of(query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Give queries the wider dtype of both; the kernel converts keys block by block."""
    return _dense(query.to(torch.promote_types(query.dtype, key.dtype))), _dense(key)


def _dense(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _mask_arguments(mask: Mask) -> tuple[Mask, tuple[int, ...]]:
    """Return the mask as the kernels read it, and its strides of batch and heads."""
    times = [x.to(torch.int32).contiguous() for x in mask[:2]]
    documents = [None if x is None else x.contiguous() for x in mask[2:]]

    def of(x: Tensor | None) -> tuple[int, int]:
        return (0, 0) if x is None else (x.stride(0), x.stride(1) if x.shape[1] > 1 else 0)

    return Mask(*times, *documents), (*of(times[1]), *of(documents[1]))


def _bytes(*tensors: Tensor | None) -> int:
    return max(int(x.element_size()) for x in tensors if x is not None)


def power_of_2(number: int) -> int:
    """Round up to a power of 2."""
    return 1 << (number - 1).bit_length()


def count_of(size: int, block: int) -> int:
    """Return how many blocks there are."""
    return -(-size // block)
