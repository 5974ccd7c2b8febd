"""Bookkeeping of a memory in Triton: what would be many small operations is one launch each.

In comments, B is the batch, G the K/V heads or 1, R the query heads per K/V head, S the entries of
a chunk, M the slots, D and E the widths of keys and values. Nothing is added by atomics: two runs
return the same bits.

Importing this module imports Triton.
"""

from __future__ import annotations

import triton.language as tl

from attendre_torch.fused.triton_kernels import compiled

__all__ = ["count_evicted", "keys", "mean_less_deviations", "rotate", "write_entries"]


@compiled
def mean_less_deviations(
    score: tl.tensor,  # float32, (rows, M), contiguous
    counted: tl.tensor,  # uint8, (rows, M), contiguous
    start: tl.tensor,  # float32, (rows)
    slots: tl.tensor,  # M
    deviations: tl.tensor,
    of_range: tl.constexpr,
    of_largest: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Score the new entries of one row."""
    row = tl.program_id(0).to(tl.int64)
    score += row * slots
    counted += row * slots
    each = tl.arange(0, block)
    highest = tl.full([block], -float("inf"), tl.float32)
    lowest = tl.full([block], float("inf"), tl.float32)
    number = tl.zeros([block], tl.int32)
    for first in range(0, slots, block):
        at = first + each
        use = tl.load(counted + at, mask=at < slots, other=0) != 0
        x = tl.load(score + at, mask=at < slots, other=0.0)
        highest = tl.maximum(highest, tl.where(use, x, -float("inf")))
        lowest = tl.minimum(lowest, tl.where(use, x, float("inf")))
        number += use.to(tl.int32)
    top = tl.max(highest, 0)
    bottom = tl.min(lowest, 0)
    count = tl.sum(number, 0)
    divisor = tl.maximum(count, 1).to(tl.float32)
    # Measured from the highest score, so that equal scores have a deviation of exactly zero.
    total = tl.zeros([block], tl.float32)
    for first in range(0, slots, block):
        at = first + each
        use = tl.load(counted + at, mask=at < slots, other=0) != 0
        x = tl.load(score + at, mask=at < slots, other=0.0)
        total += tl.where(use, x - top, 0.0)
    mean = tl.div_rn(tl.sum(total, 0), divisor)
    squares = tl.zeros([block], tl.float32)
    for first in range(0, slots, block):
        at = first + each
        use = tl.load(counted + at, mask=at < slots, other=0) != 0
        x = tl.load(score + at, mask=at < slots, other=0.0)
        apart = (x - top) - mean
        squares += tl.where(use, apart * apart, 0.0)
    sigma = tl.sqrt_rn(tl.div_rn(tl.sum(squares, 0), divisor))
    result = top + (mean - deviations * sigma)
    near = of_range * (top - bottom) + of_largest * tl.maximum(top, -bottom)
    same = tl.full([block], float("inf"), tl.float32)
    for first in range(0, slots, block):
        at = first + each
        use = tl.load(counted + at, mask=at < slots, other=0) != 0
        x = tl.load(score + at, mask=at < slots, other=0.0)
        close = use & (tl.abs(x - result) <= near)
        same = tl.minimum(same, tl.where(close, x, float("inf")))
    snapped = tl.min(same, 0)
    result = tl.where(snapped < float("inf"), snapped, result)
    tl.store(start + row, tl.where(count > 0, result, 0.0))


@compiled
def keys(
    primary: tl.tensor,  # float32, (number), contiguous
    order: tl.tensor,  # int32, (number), contiguous
    key: tl.tensor,  # int64, (number)
    number: tl.tensor,
    block: tl.constexpr,
) -> None:
    """Join primary and order to distinct integers that compare as they do, for one block."""
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    x = tl.load(primary + at, mask=at < number, other=0.0)
    bits = x.to(tl.int32, bitcast=True)  # sign and magnitude: both zeros become 0
    bits = tl.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    low = tl.load(order + at, mask=at < number, other=0).to(tl.int64)
    tl.store(key + at, (bits.to(tl.int64) << 32) + low, mask=at < number)


@compiled
def rotate(
    x: tl.tensor,  # float32, (B, G, R, S, D), the last stride is 1
    position: tl.tensor,  # int32, (B, G, R, S)
    frequency: tl.tensor,  # float32, (D / 2), contiguous
    rotated: tl.tensor,  # float32, (B, G, R, S, D), contiguous
    x_b: tl.tensor,  # strides
    x_g: tl.tensor,
    x_r: tl.tensor,
    x_s: tl.tensor,
    position_b: tl.tensor,
    position_g: tl.tensor,
    position_r: tl.tensor,
    position_s: tl.tensor,
    heads: tl.tensor,  # G
    group: tl.tensor,  # R
    count: tl.tensor,  # S
    rows: tl.tensor,  # B * G * R * S
    half: tl.tensor,  # D / 2
    row_block: tl.constexpr,
    half_block: tl.constexpr,
) -> None:
    """Rotate pairs of features by their positions times frequencies, for one block of rows."""
    row = tl.program_id(0).to(tl.int64) * row_block + tl.arange(0, row_block)
    column = tl.arange(0, half_block)
    inside = (row < rows)[:, None] & (column < half)[None, :]
    s = row % count
    r = row // count % group
    g = row // (count * group) % heads
    b = row // (count * group * heads)
    place = b * position_b + g * position_g + r * position_r + s * position_s
    at = tl.load(position + place, mask=row < rows, other=0).to(tl.float32)
    angle = at[:, None] * tl.load(frequency + column, mask=column < half, other=0.0)[None, :]
    cosine = tl.cos(angle)
    sine = tl.sin(angle)
    start = x + (b * x_b + g * x_g + r * x_r + s * x_s)[:, None] + column[None, :]
    left = tl.load(start, mask=inside, other=0.0)
    right = tl.load(start + half, mask=inside, other=0.0)
    target = rotated + (row * 2 * half)[:, None] + column[None, :]
    tl.store(target, left * cosine - right * sine, mask=inside)
    tl.store(target + half, right * cosine + left * sine, mask=inside)


@compiled
def write_entries(
    key: tl.tensor,  # (B, G, M, D), contiguous
    value: tl.tensor,  # (B, G, M, E), contiguous
    new_key: tl.tensor,  # (B, G, S, D), the last stride is 1
    new_value: tl.tensor,  # (B, G, S, E), the last stride is 1
    slot: tl.tensor,  # int64, (B, G, S)
    write: tl.tensor,  # uint8, (B, G, S)
    key_b: tl.tensor,  # strides
    key_g: tl.tensor,
    key_s: tl.tensor,
    value_b: tl.tensor,
    value_g: tl.tensor,
    value_s: tl.tensor,
    slot_b: tl.tensor,
    slot_g: tl.tensor,
    slot_s: tl.tensor,
    write_b: tl.tensor,
    write_g: tl.tensor,
    write_s: tl.tensor,
    heads: tl.tensor,  # G
    slots: tl.tensor,  # M
    count: tl.tensor,  # S
    key_dim: tl.tensor,  # D
    value_dim: tl.tensor,  # E
    entry_block: tl.constexpr,
    key_block: tl.constexpr,
    value_block: tl.constexpr,
) -> None:
    """Write keys and values into their slots, for one block of the entries of one head."""
    blocks = tl.cdiv(count, entry_block)
    which = (tl.program_id(0) // blocks).to(tl.int64)
    b = which // heads
    g = which % heads
    s = (tl.program_id(0) % blocks * entry_block + tl.arange(0, entry_block)).to(tl.int64)
    real = s < count
    flag = tl.load(write + b * write_b + g * write_g + s * write_s, mask=real, other=0) != 0
    place = tl.load(slot + b * slot_b + g * slot_g + s * slot_s, mask=flag, other=0)
    row = which * slots + place
    column = tl.arange(0, key_block)
    inside = flag[:, None] & (column < key_dim)[None, :]
    source = new_key + b * key_b + g * key_g + (s * key_s)[:, None] + column[None, :]
    entries = tl.load(source, mask=inside, other=0.0)
    tl.store(key + (row * key_dim)[:, None] + column[None, :], entries, mask=inside)
    column = tl.arange(0, value_block)
    inside = flag[:, None] & (column < value_dim)[None, :]
    source = new_value + b * value_b + g * value_g + (s * value_s)[:, None] + column[None, :]
    entries = tl.load(source, mask=inside, other=0.0)
    tl.store(value + (row * value_dim)[:, None] + column[None, :], entries, mask=inside)


@compiled
def count_evicted(
    evictions: tl.tensor,  # int32, (B), contiguous
    refusals: tl.tensor,  # int32, (B), contiguous
    valid: tl.tensor,  # uint8, (B, G, M), contiguous
    arrival: tl.tensor,  # int32, (B, G, M), contiguous
    slot: tl.tensor,  # int64, (B, G, S)
    write: tl.tensor,  # uint8, (B, G, S)
    new_valid: tl.tensor,  # uint8, (B, G, S)
    new_arrival: tl.tensor,  # int32, (B, G, S)
    since: tl.tensor,  # int32, (B), contiguous
    counts: tl.tensor,  # int32, (2, B), contiguous: evictions and refusals
    slot_b: tl.tensor,  # strides
    slot_g: tl.tensor,
    slot_s: tl.tensor,
    write_b: tl.tensor,
    write_g: tl.tensor,
    write_s: tl.tensor,
    valid_b: tl.tensor,
    valid_g: tl.tensor,
    valid_s: tl.tensor,
    arrival_b: tl.tensor,
    arrival_g: tl.tensor,
    arrival_s: tl.tensor,
    batch: tl.tensor,  # B
    heads: tl.tensor,  # G
    slots: tl.tensor,  # M
    count: tl.tensor,  # S
    block: tl.constexpr,
) -> None:
    """Count what the new entries of one row evict, and how much of it is late."""
    b = tl.program_id(0).to(tl.int64)
    first_late = tl.load(since + b)
    gone = tl.zeros([block], tl.int32)
    late = tl.zeros([block], tl.int32)
    for first in range(0, heads * count, block):
        entry = (first + tl.arange(0, block)).to(tl.int64)
        real = entry < heads * count
        g = entry // count
        s = entry % count
        flag = tl.load(write + b * write_b + g * write_g + s * write_s, mask=real, other=0) != 0
        place = tl.load(slot + b * slot_b + g * slot_g + s * slot_s, mask=flag, other=0)
        held = (b * heads + g) * slots + place
        was = tl.load(valid + held, mask=flag, other=0)
        own = tl.load(new_valid + b * valid_b + g * valid_g + s * valid_s, mask=real, other=0)
        leaves = (tl.where(flag, was, own) != 0) & real
        then = tl.load(arrival + held, mask=flag, other=0)
        at = new_arrival + b * arrival_b + g * arrival_g + s * arrival_s
        number = tl.where(flag, then, tl.load(at, mask=real, other=0))
        gone += leaves.to(tl.int32)
        late += (leaves & (number >= first_late)).to(tl.int32)
    tl.store(counts + b, tl.load(evictions + b) + tl.sum(gone, 0))
    tl.store(counts + batch + b, tl.load(refusals + b) + tl.sum(late, 0))
