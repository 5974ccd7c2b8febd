"""Attention and scores in Triton: one pass along the slots, one along the queries.

::

                slots                         slots
            ┌───────────┐                  ┌───────────┐
    queries │ ────────► │ output,  queries │ │ │ │ │ │ │
            │ ────────► │ sum              │ ▼ ▼ ▼ ▼ ▼ │
            └───────────┘                  └───────────┘
             attend_rows                    pool_columns: a score for each slot

`attend_rows` is flash attention. It returns the output and, for each query, the logarithm of the
sum of exponentials of its logits. `pool_columns` computes logits a second time and pools them, or
their softmax weights, over queries. Neither writes the matrix of all pairs. Every number is summed
by one program in a fixed order, without atomics: two runs return the same bits and so evict the
same entries.

In comments, B is the batch, G the K/V heads, R the query heads per K/V head, S the queries, M the
slots, D and E the widths of keys and values. A query and a slot are a pair if ``key_time <=
query_time``, and if their documents are equal where there are documents.

Importing this module imports Triton.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import triton
import triton.language as tl

__all__ = ["attend_rows", "pool_columns"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compile a function with Triton on its first call."""
    result: F = triton.jit(function)
    return result


@compiled
def _part(
    pointer: tl.tensor,
    row: tl.tensor,
    stride: tl.tensor,
    size: tl.tensor,
    width: tl.tensor,
    columns: tl.constexpr,
) -> tl.tensor:
    """Load rows of a matrix, (rows, columns), with zeros beyond its size and width."""
    column = tl.arange(0, columns)
    inside = (row < size)[:, None] & (column < width)[None, :]
    return tl.load(pointer + row[:, None] * stride + column[None, :], mask=inside, other=0.0)


@compiled
def _times(x: tl.tensor, y: tl.tensor, precision: tl.constexpr, upcast: tl.constexpr) -> tl.tensor:
    """Multiply two matrices of one dtype into float32.

    The interpreter multiplies the bits of bfloat16 numbers as integers: ``upcast`` avoids it.
    """
    if upcast:
        return tl.dot(x.to(tl.float32), y.to(tl.float32), input_precision="ieee")
    return tl.dot(x, y, input_precision=precision)


@compiled
def attend_rows(
    query: tl.tensor,  # (B, G, R, S, D)
    key: tl.tensor,  # (B, G, M, D)
    value: tl.tensor,  # (B, G, M, E), or None: only the sums are wanted
    output: tl.tensor,  # (B, G, R, S, E), contiguous, or None
    sums: tl.tensor,  # float32, (B, G, R, S), contiguous; infinity where nothing is allowed
    query_time: tl.tensor,  # int32, (B, S), contiguous
    key_time: tl.tensor,  # int32, (B, 1 or G, M), the last stride is 1
    query_document: tl.tensor,  # (B, S), contiguous, or None
    key_document: tl.tensor,  # (B, 1 or G, M), the last stride is 1, or None
    scale: tl.tensor,  # multiplies the products of queries and keys
    query_b: tl.tensor,  # strides
    query_g: tl.tensor,
    query_r: tl.tensor,
    query_s: tl.tensor,
    key_b: tl.tensor,
    key_g: tl.tensor,
    key_m: tl.tensor,
    value_b: tl.tensor,
    value_g: tl.tensor,
    value_m: tl.tensor,
    time_b: tl.tensor,
    time_g: tl.tensor,
    document_b: tl.tensor,
    document_g: tl.tensor,
    heads: tl.tensor,  # G
    group: tl.tensor,  # R
    queries: tl.tensor,  # S
    slots: tl.tensor,  # M
    key_dim: tl.tensor,  # D
    value_dim: tl.tensor,  # E
    query_block: tl.constexpr,
    slot_block: tl.constexpr,
    key_block: tl.constexpr,  # D and E, rounded up to powers of 2
    value_block: tl.constexpr,
    precision: tl.constexpr,
    upcast: tl.constexpr,
) -> None:
    """Attend, for one block of the R * S rows of one K/V head: B * G * blocks programs."""
    blocks = tl.cdiv(group * queries, query_block)
    which = (tl.program_id(0) // blocks).to(tl.int64)
    b = which // heads
    g = which % heads
    row = tl.program_id(0) % blocks * query_block + tl.arange(0, query_block)
    real = row < group * queries
    s = row % queries
    at = (row // queries).to(tl.int64) * query_r + s.to(tl.int64) * query_s
    column = tl.arange(0, key_block)
    q = tl.load(
        query + b * query_b + g * query_g + at[:, None] + column[None, :],
        mask=real[:, None] & (column < key_dim)[None, :],
        other=0.0,
    )
    now = tl.load(query_time + b * queries + s, mask=real, other=-(2**31))
    if query_document is not None:
        own = tl.load(query_document + b * queries + s, mask=real, other=0)
    top = tl.full([query_block], -float("inf"), tl.float32)
    total = tl.zeros([query_block], tl.float32)
    mixed = tl.zeros([query_block, value_block], tl.float32)
    for start in range(0, slots, slot_block):
        slot = start + tl.arange(0, slot_block)
        held = slot < slots
        place = slot.to(tl.int64)
        k = _part(key + b * key_b + g * key_g, place, key_m, slots, key_dim, key_block)
        time = tl.load(key_time + b * time_b + g * time_g + slot, mask=held, other=2**31 - 1)
        allowed = time[None, :] <= now[:, None]
        if query_document is not None:
            id_at = key_document + b * document_b + g * document_g + slot
            ids = tl.load(id_at, mask=held, other=0)
            allowed = allowed & (ids[None, :] == own[:, None])
        logits = _times(q, tl.trans(k.to(q.dtype)), precision, upcast) * scale
        logits = tl.where(allowed, logits, -float("inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        level = tl.where(higher == -float("inf"), 0.0, higher)
        raised = tl.exp(logits - level[:, None])
        shrink = tl.exp(top - level)
        total = total * shrink + tl.sum(raised, 1)
        if value is not None:
            v = _part(value + b * value_b + g * value_g, place, value_m, slots, value_dim,
                      value_block)  # fmt: skip
            mixed = mixed * shrink[:, None] + _times(raised.to(v.dtype), v, precision, upcast)
        top = higher
    some = total > 0
    divisor = tl.where(some, total, 1.0)
    target = which * group * queries + row
    result = tl.where(some, top + tl.log(divisor), float("inf"))
    tl.store(sums + target, result, mask=real)
    if value is not None:
        wide = tl.arange(0, value_block)
        tl.store(
            output + target[:, None] * value_dim + wide[None, :],
            (mixed / divisor[:, None]).to(output.dtype.element_ty),
            mask=real[:, None] & (wide < value_dim)[None, :],
        )


@compiled
def pool_columns(
    query: tl.tensor,  # as in attend_rows
    key: tl.tensor,
    sums: tl.tensor,  # None: logits are pooled, not softmax weights
    weight: tl.tensor,  # float32, (B, S), contiguous: multiplies what is pooled; or None
    pooled: tl.tensor,  # float32, (B, G, R, M), contiguous
    query_time: tl.tensor,
    key_time: tl.tensor,
    query_document: tl.tensor,
    key_document: tl.tensor,
    scale: tl.tensor,
    query_b: tl.tensor,
    query_g: tl.tensor,
    query_r: tl.tensor,
    query_s: tl.tensor,
    key_b: tl.tensor,
    key_g: tl.tensor,
    key_m: tl.tensor,
    time_b: tl.tensor,
    time_g: tl.tensor,
    document_b: tl.tensor,
    document_g: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    queries: tl.tensor,
    slots: tl.tensor,
    key_dim: tl.tensor,
    how: tl.constexpr,  # "sum", "max" or "mean"
    query_block: tl.constexpr,
    slot_block: tl.constexpr,
    key_block: tl.constexpr,
    precision: tl.constexpr,
    upcast: tl.constexpr,
) -> None:
    """Pool over all queries of one head, for one block of slots: B * G * R * blocks programs."""
    blocks = tl.cdiv(slots, slot_block)
    head = (tl.program_id(0) // blocks).to(tl.int64)
    b = head // (heads * group)
    g = head // group % heads
    slot = tl.program_id(0) % blocks * slot_block + tl.arange(0, slot_block)
    held = slot < slots
    k = _part(key + b * key_b + g * key_g, slot.to(tl.int64), key_m, slots, key_dim, key_block)
    k = tl.trans(k.to(query.dtype.element_ty))
    time = tl.load(key_time + b * time_b + g * time_g + slot, mask=held, other=2**31 - 1)
    if query_document is not None:
        id_at = key_document + b * document_b + g * document_g + slot
        ids = tl.load(id_at, mask=held, other=0)
    total = tl.full([slot_block], -float("inf") if how == "max" else 0.0, tl.float32)
    count = tl.zeros([slot_block], tl.int32)
    base = query + b * query_b + g * query_g + head % group * query_r
    for start in range(0, queries, query_block):
        s = start + tl.arange(0, query_block)
        real = s < queries
        q = _part(base, s.to(tl.int64), query_s, queries, key_dim, key_block)
        now = tl.load(query_time + b * queries + s, mask=real, other=-(2**31))
        allowed = time[None, :] <= now[:, None]
        if query_document is not None:
            own = tl.load(query_document + b * queries + s, mask=real, other=0)
            allowed = allowed & (ids[None, :] == own[:, None])
        amount = _times(q, k, precision, upcast) * scale
        if sums is not None:
            level = tl.load(sums + head * queries + s, mask=real, other=float("inf"))
            amount = tl.exp(amount - level[:, None])
        if weight is not None:
            factor = tl.load(weight + b * queries + s, mask=real, other=0.0)
            amount = amount * factor[:, None]
        if how == "max":
            total = tl.maximum(total, tl.max(tl.where(allowed, amount, -float("inf")), 0))
        else:
            total += tl.sum(tl.where(allowed, amount, 0.0), 0)
        if how == "mean":
            count += tl.sum(allowed.to(tl.int32), 0)
    if how == "max":
        total = tl.where(total == -float("inf"), 0.0, total)
    if how == "mean":
        total = total / tl.maximum(count, 1).to(tl.float32)
    tl.store(pooled + head * slots + slot, total, mask=held)
