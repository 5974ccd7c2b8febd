"""Ops of `attendre_core.ops` in PyTorch's own words, where these are faster.

Each returns what the generic op returns, the same indices on ties included. All of them trace
under ``torch.compile`` and differentiate where the op has a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = [
    "attention",
    "exchange_slots",
    "gather_slots",
    "kth_largest",
    "lowest",
    "masked_softmax",
    "running_count",
]


def lowest(primary: Tensor | None, order: Tensor, count: int) -> Tensor:
    """Select by one 64-bit key that holds both: the score's bits above, the order below.

    The keys are all different, so it does not matter how ``topk`` treats equal ones.
    """
    if primary is None:
        key = order.to(torch.int64)
    elif primary.dtype == torch.float32:
        bits = (primary + 0.0).view(torch.int32).to(torch.int64)  # -0.0 becomes 0.0
        bits = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        key = bits * 2**32 + (order.to(torch.int64) + 2**31)
    else:
        by_order = torch.argsort(order, dim=-1, stable=True)
        ranked = torch.gather(primary, -1, by_order)
        by_primary = torch.argsort(ranked, dim=-1, stable=True)
        return torch.gather(by_order, -1, by_primary[..., :count])
    return torch.topk(key, count, dim=-1, largest=False, sorted=True).indices


def masked_softmax(logits: Tensor, allowed: Tensor) -> Tensor:
    """Fused softmax; rows with nothing allowed give zeros."""
    weights = logits.masked_fill(~allowed, torch.finfo(logits.dtype).min).softmax(-1)
    empty = ~allowed.any(-1, keepdim=True)
    if not torch.compiler.is_compiling() and weights.device.type == "cpu" and not empty.any():
        return weights
    return weights.masked_fill(empty, 0.0)


def running_count(flags: Tensor) -> Tensor:
    """Count flags along the last axis; the compat layer's own version makes Dynamo warn."""
    return torch.cumsum(flags, dim=-1, dtype=torch.int32)


def kth_largest(x: Tensor, k: int) -> Tensor:
    """Return the k-th largest value, (..., 1)."""
    return torch.topk(x, k, dim=-1, sorted=True).values[..., k - 1 : k]


def _lead_index(index: Tensor, lead: torch.Size) -> tuple[Tensor, ...]:
    """Return index tensors that pick whole entries: one for each leading axis, and the slots."""
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    axes = tuple(
        torch.arange(n, device=index.device).reshape((1,) * i + (n,) + (1,) * (len(lead) - i))
        for i, n in enumerate(lead)
    )
    return (*axes, index)


def gather_slots(array: Tensor, index: Tensor, *, axis: int) -> Tensor:
    """Take whole entries by index."""
    return array[_lead_index(index, array.shape[:axis])]


def exchange_slots(
    array: Tensor, index: Tensor, new: Tensor, write: Tensor, *, axis: int, donate: bool
) -> tuple[Tensor, Tensor]:
    """Write whole entries by index; in place when donated and no gradient is recorded."""
    where = _lead_index(index, array.shape[:axis])
    displaced = array[where]
    shape = write.shape[:-1] + (1,) * (axis + 1 - index.ndim) + write.shape[-1:]
    written = write.reshape(shape + (1,) * (array.ndim - axis - 1))
    values = torch.where(written, new, displaced)
    if donate and not (torch.is_grad_enabled() and (array.requires_grad or new.requires_grad)):
        return array.index_put_(where, values), displaced
    return array.index_put(where, values), displaced


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Fused attention; rows with nothing allowed give zeros."""
    batch, heads, group, count, dim = query.shape
    slots = key.shape[2]
    if allowed.shape[2] == 1 and allowed.shape[3] == 1:
        mask = allowed[:, :, 0]
    else:
        mask = allowed.expand(-1, -1, group, count, -1).reshape(
            allowed.shape[0], allowed.shape[1], group * count, slots
        )
    flat = torch.nn.functional.scaled_dot_product_attention(
        query.reshape(batch, heads, group * count, dim),
        key,
        value,
        attn_mask=mask,
        scale=1.0,
    )
    flat = torch.where(mask.any(-1, keepdim=True), flat, torch.zeros_like(flat))
    return flat.reshape(batch, heads, group, count, value.shape[3])
