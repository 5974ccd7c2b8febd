"""Kernels of ops in PyTorch's own functions, where these are faster.

Each returns the same as the plain body of the op, the same indices for ties included. All of them
can be traced by ``torch.compile``, and differentiated where the op has a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attendre_core.backend import wide
from attendre_core.eager.parts import groups_of
from attendre_core.ops.pairs import Pairs, visible_pairs
from attendre_torch import namespace
from attendre_torch.half import Inputs, inputs_of
from attendre_torch.looking import launched, numbers_of, readable

__all__ = [
    "attend",
    "attention",
    "bounded",
    "count_true",
    "displaced",
    "finite_entries",
    "gather_slots",
    "kth_largest",
    "lowest",
    "masked_softmax",
    "rms_norm",
    "rotate_halves",
    "running_count",
    "take_slots",
    "write_slots",
]


def bounded(x: Tensor, bound: float) -> Tensor:
    """Clip numbers; NaN becomes the lowest."""
    return torch.nan_to_num(x, -bound, bound, -bound).clamp(-bound, bound)


def lowest(primary: Tensor | None, order: Tensor, count: int) -> Tensor:
    """Select by a 64-bit key with the bits of ``primary`` above those of ``order``.

    The keys are distinct, so it does not matter how ``topk`` breaks ties.
    """
    if primary is None:
        key = order.to(torch.int64)
    elif primary.dtype == torch.float32:
        key = keys(primary, order)
    else:
        by_order = torch.argsort(order, dim=-1, stable=True)
        ranked = torch.gather(primary, -1, by_order)
        by_primary = torch.argsort(ranked, dim=-1, stable=True)
        return torch.gather(by_order, -1, by_primary[..., :count])
    return torch.topk(key, count, dim=-1, largest=False, sorted=True).indices


#: The bits of -0.0.
_SIGN = -(2**31)


def keys(primary: Tensor, order: Tensor) -> Tensor:
    """Return distinct 64-bit integers in the order of (primary, order); primary is float32."""
    bits = primary.view(torch.int32)  # sign and magnitude: both zeros become 0
    bits = torch.where(bits < 0, _SIGN - bits, bits)
    return torch.add(order, bits.to(torch.int64), alpha=2**32)


def _all(flags: Tensor) -> bool:
    """Return whether all flags are True; as bytes, which is many times faster."""
    return bool(flags.view(torch.uint8).amin()) if flags.numel() else True


def _some(flags: Tensor) -> Tensor:
    """Return which rows have a True flag, (..., 1)."""
    return flags.view(torch.uint8).amax(-1, keepdim=True).view(torch.bool)


def masked_softmax(logits: Tensor, allowed: Tensor | None, sink: Tensor | None = None) -> Tensor:
    """Fused softmax; rows with nothing allowed give zeros."""
    if sink is not None:
        return NotImplemented
    if allowed is None or (readable(allowed) and _all(allowed)):
        return logits.softmax(-1)
    weights = torch.where(allowed, logits, torch.finfo(logits.dtype).min).softmax(-1)
    some = _some(allowed)
    if readable(some) and _all(some):
        return weights
    return weights.masked_fill(~some, 0.0)


def finite_entries(x: Tensor, keep: tuple[int, ...], below: float = math.inf) -> Tensor:
    """Look at the extremes first, NaN if there is a NaN: one pass, and no tensor of flags."""
    if not readable(x) or 0 in x.shape:
        return NotImplemented
    least, most = x.detach().aminmax()
    if not (float(least) > -below and float(most) < below):
        return NotImplemented
    shape = map(x.shape.__getitem__, keep)
    return torch.ones([*shape], dtype=torch.bool, device=x.device)


def count_true(flags: Tensor, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Tensor:
    """Sum booleans directly.

    Compiled code sums float32 numbers: a third faster, and exact below 2**24 flags.
    """
    if torch.compiler.is_compiling() and isinstance(axis, int) and flags.shape[axis] < 2**24:
        return flags.to(torch.float32).sum(axis, keepdim=keepdims).to(torch.int32)
    return torch.sum(flags, dim=axis, keepdim=keepdims, dtype=torch.int32)


def running_count(flags: Tensor) -> Tensor:
    """Count flags along the last axis; array-api-compat's own version makes Dynamo warn.

    Counted in 64 bits: if all flags are known, the compiler replaces the cumulative sum by a range
    of 64-bit numbers, whatever dtype was requested.
    """
    if launched(flags):
        return torch.cumsum(flags, dim=-1, dtype=torch.int32)
    return torch.cumsum(flags, dim=-1).to(torch.int32)


def kth_largest(x: Tensor, k: int) -> Tensor:
    """Return the k-th largest value, (..., 1).

    NumPy's selection takes at most half the time of PyTorch's, and shares the memory.
    """
    place = x.shape[-1] - k
    numbers = numbers_of(x)
    if numbers is not None:
        parted = np.partition(numbers, place, axis=-1)
        return torch.from_numpy(parted[..., place : place + 1].copy())
    return torch.topk(x, k, dim=-1, sorted=True).values[..., k - 1 : k]


def _aligned(index: Tensor, lead: torch.Size) -> Tensor:
    """Broadcast an index (or flags) to the leading axes of an array: (B, S) to (B, G, S)."""
    if index.shape[:-1] == lead:
        return index
    missing = len(lead) + 1 - index.ndim
    index = index.reshape(index.shape[:-1] + (1,) * missing + index.shape[-1:])
    return index.expand(*lead, index.shape[-1])


def _rows(index: Tensor, slots: int) -> Tensor:
    """Return the indices of whole entries after flattening leading axes and slots into one."""
    lead = index.shape[:-1].numel()
    first = torch.arange(0, lead * slots, slots, device=index.device)
    return (index.reshape(lead, -1) + first[:, None]).reshape(-1)


def gather_slots(array: Tensor, index: Tensor, *, axis: int) -> Tensor:
    """Take whole entries by index."""
    index = _aligned(index, array.shape[:axis])
    rest = array.shape[axis + 1 :]
    if not rest:
        return array.gather(-1, index)
    picked = array.reshape(-1, *rest).index_select(0, _rows(index, array.shape[axis]))
    return picked.reshape(*index.shape, *rest)


def take_slots(arrays: Sequence[Tensor], index: Tensor, *, axis: int) -> list[Tensor]:
    """Take whole entries by index; all of them, in order, are the tensors as they are."""
    numbers, slots = numbers_of(index), arrays[0].shape[axis]
    if numbers is not None and index.shape[-1] == slots and (numbers == np.arange(slots)).all():
        return list(arrays)
    return [gather_slots(array, index, axis=axis) for array in arrays]


def displaced(
    arrays: Sequence[Tensor], index: Tensor, new: Sequence[Tensor], write: Tensor, *, axis: int
) -> Any:
    """Take whole entries by index, if all of them are written."""
    if not readable(write) or not _all(write):
        return NotImplemented
    return [gather_slots(array, index, axis=axis) for array in arrays]


def write_slots(
    arrays: Sequence[Tensor],
    index: Tensor,
    new: Sequence[Tensor],
    write: Tensor,
    *,
    axis: int,
    donate: bool = False,
) -> list[Tensor]:
    """Write whole entries by index; in place when donated and no gradient is recorded.

    Eager code with donated arrays touches only the slots that are written.
    """
    if readable(write) and donate:
        return _write_chosen(arrays, index, new, write, axis)
    index = _aligned(index, arrays[0].shape[:axis])
    rows = _rows(index, arrays[0].shape[axis]) if any(x.ndim > axis + 1 for x in arrays) else None
    written = _aligned(write, arrays[0].shape[:axis])
    whole = readable(write) and _all(write)
    after = []
    for array, entries in zip(arrays, new, strict=True):
        rest = array.shape[axis + 1 :]
        place = index if rows is None or not rest else rows
        flat = array.reshape(-1, *rest) if rest else array
        values = entries
        if not whole:
            held = flat.index_select(0, place) if rest else flat.gather(-1, place)
            flags = written.reshape(written.shape + (1,) * len(rest))
            values = torch.where(flags, entries, held.reshape(entries.shape))
        in_place = donate and not _recorded(array, entries) and array.is_contiguous()
        if rest:
            put = flat.index_copy_ if in_place else flat.index_copy
            after.append(put(0, place, values.reshape(-1, *rest)).reshape(array.shape))
        else:
            put = flat.scatter_ if in_place else flat.scatter
            after.append(put(-1, place, values))
    return after


def _recorded(*tensors: Tensor) -> bool:
    """Return whether a gradient of one of the tensors is recorded."""
    if torch.is_grad_enabled():
        for x in tensors:
            if x.requires_grad:
                return True
    return False


def _write_chosen(
    arrays: Sequence[Tensor], index: Tensor, new: Sequence[Tensor], write: Tensor, axis: int
) -> list[Tensor]:
    """Write only the entries where ``write`` is True, and touch no other slot."""
    single = index.shape[:-1].numel() == 1  # one row of slots, shared by all leading axes
    if single:
        place, flags = index.reshape(-1), write.reshape(-1)
    else:
        place = _rows(_aligned(index, arrays[0].shape[:axis]), arrays[0].shape[axis])
        flags = _aligned(write, arrays[0].shape[:axis]).reshape(-1)
    chosen = None if _all(flags) else flags.nonzero()[:, 0]
    if chosen is not None:
        place = place.index_select(0, chosen)
    after = []
    for array, entries in zip(arrays, new, strict=True):
        rest = array.shape[axis + 1 :]
        flat = array if single else array.reshape(-1, *rest)
        entries = entries if single else entries.reshape(-1, *rest)
        along = axis if single else 0
        if chosen is not None:
            entries = entries.index_select(along, chosen)
        if _recorded(array, entries) or not array.is_contiguous():
            flat = flat.index_copy(along, place, entries)
        else:
            flat.index_copy_(along, place, entries)
        after.append(flat if single else flat.reshape(array.shape))
    return after


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Use the fused op; in half precision, round before multiplying by the weight."""
    if x.dtype in (torch.float16, torch.bfloat16):
        return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps) * weight
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


def rotate_halves(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Write both halves into one tensor, unless gradients are recorded or code is compiled."""
    half = cosine.shape[-1]
    left, right = x[..., :half], x[..., half:]
    if torch.compiler.is_compiling() or torch.is_grad_enabled():
        return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)
    rotated = torch.empty_like(x, memory_format=torch.contiguous_format)
    torch.mul(left, cosine, out=rotated[..., :half]).addcmul_(right, sine, value=-1)
    torch.mul(right, cosine, out=rotated[..., half:]).addcmul_(left, sine)
    return rotated


def attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None = None) -> Tensor:
    """Fused attention; rows with nothing allowed give zeros."""
    return _fused(Inputs(query, key, value, 1.0), allowed)


def _fused(inputs: Inputs, allowed: Tensor | None) -> Tensor:
    query, key, value, scale = inputs
    everything = allowed is None or (readable(allowed) and _all(allowed))
    rows, mask = _rows_and_mask(query, None if everything else allowed)
    # Decided here: compiled for any shape, the comparison is a symbol, which the call refuses.
    grouped = {"enable_gqa": True} if rows.shape[1] > key.shape[1] else {}
    flat = torch.nn.functional.scaled_dot_product_attention(
        rows, key, value, attn_mask=mask, scale=scale, **grouped
    )
    output = flat.reshape(*query.shape[:4], value.shape[3])
    if allowed is None or everything:
        return output
    some = _some(allowed)
    if readable(some) and _all(some):
        return output
    return torch.where(some, output, namespace.zeros_like(output))


def _rows_and_mask(query: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Reshape queries and flags for the fused kernel, (batch, heads, rows, ...).

    The query heads of a K/V head become further rows of it, so that the kernel works in larger
    blocks. If the flags would have to be copied for that, the CPU's kernel gets all query heads
    instead; of a GPU's kernels, only the unfused one takes grouped heads and flags.
    """
    batch, heads, group, count, dim = query.shape
    if allowed is None or allowed.shape[2:4] == (1, 1):
        mask = None if allowed is None else allowed[:, :, 0]
        return query.reshape(batch, heads, group * count, dim), mask
    if group > 1 and query.device.type != "cpu":
        return _folded(query, allowed)
    mask = allowed[:, :, 0]
    if allowed.shape[1:3] != (1, 1):
        mask = allowed.expand(-1, heads, group, -1, -1).flatten(1, 2)
    return query.reshape(batch, heads * group, count, dim), mask


def _folded(query: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
    """Make the query heads of a K/V head rows of it, and repeat the flags for each of them."""
    batch, heads, group, count, dim = query.shape
    mask = allowed.expand(-1, -1, group, count, -1).flatten(2, 3)
    return query.reshape(batch, heads, group * count, dim), mask


def attend(pairs: Pairs, value: Tensor) -> Tensor:
    """Attend in fused calls: one for a single term, else one per group of slots and term."""
    if not pairs.is_plain:
        return NotImplemented
    if len(pairs.terms) == 1:
        return _fused(inputs_of(pairs, pairs.terms[0], value), visible_pairs(pairs))
    query, key = pairs.terms[0].plain_query, pairs.terms[0].plain_key
    recorded = _recorded(query, key, value)
    if recorded or not readable(query) or key.shape[3] != value.shape[3]:
        return NotImplemented
    rows = groups_of(pairs)
    if rows is None:
        return NotImplemented
    outputs = []
    for row, groups in enumerate(rows):
        own = value[row : row + 1]
        parts = [
            (part, own if group.slots is None else own.index_select(2, group.slots))
            for group in groups
            for part in group.pairs
        ]
        outputs.append(_joined(parts))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _joined(parts: Sequence[tuple[Pairs, Tensor]]) -> Tensor:
    """Attend to each part and combine the outputs by their sums of exponentials."""
    (pairs, value), *others = parts
    if not others:
        return _fused(inputs_of(pairs, pairs.terms[0], value), visible_pairs(pairs))
    output, total = _with_sum(pairs, value)
    for pairs, value in others:
        other, more = _with_sum(pairs, value)
        # A query with nothing allowed in either part has a share of NaN; both outputs are zeros.
        share = torch.sigmoid(more - total).nan_to_num_(0.0)
        output = output.lerp_(other, share[..., None])
        total = torch.logaddexp(total, more)
    return output


def _with_sum(pairs: Pairs, value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the output and the logarithm of the sum of exponentials, (batch, ..., queries)."""
    query, key, value, scale = inputs_of(pairs, pairs.terms[0], value)
    allowed = visible_pairs(pairs)
    everything = _all(allowed)
    rows, mask = _rows_and_mask(query, None if everything else allowed)
    if mask is not None:
        mask = torch.where(mask, 0.0, -torch.inf).to(query.dtype)
    flat, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        rows, key, value, attn_mask=mask, scale=scale
    )
    total = total.reshape(query.shape[:4])
    if not everything:
        # PyTorch returns a sum of one for rows with nothing allowed.
        total = torch.where(_some(allowed)[..., 0], total, -torch.inf)
    return wide(flat).reshape(*query.shape[:4], value.shape[3]), total
