"""Attention and scores in Pallas: one pass along the slots, one along the queries.

::

                slots                         slots
            ┌───────────┐                  ┌───────────┐
    queries │ ────────► │ output,  queries │ │ │ │ │ │ │
            │ ────────► │ sum              │ ▼ ▼ ▼ ▼ ▼ │
            └───────────┘                  └───────────┘
             attend_rows                    pool_columns: a score for each slot

The same as the kernels of PyTorch. The last axis of the grid is the one that is summed over: its
steps follow each other, with the sums so far in scratch memory. A kernel gets its arrays by name,
because some are optional; each is one block, with leading axes of length 1.

Importing this module imports Pallas.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

__all__ = ["attend_rows", "pool_columns"]

#: A block of an array, to read and to write.
Ref = Any


def attend_rows(refs: Mapping[str, Ref], *, scale: float, blocks: int) -> None:
    """Attend, for one block of rows of one K/V head: grid (batch, G, row blocks, slot blocks).

    Parameters
    ----------
    refs
        ``query`` (rows, dim), ``key`` (slots, dim), ``value`` (slots, value_dim), ``query_time``
        (rows, 1), ``key_time`` (1, slots), documents likewise; ``output`` (rows, value_dim) and
        ``sums`` (rows, 1); scratch ``top``, ``total`` and ``mixed``.
    scale
        Multiplies the products of queries and keys.
    blocks
        How many blocks of slots there are.
    """
    step = pl.program_id(3)
    top, total, mixed = refs["top"], refs["total"], refs.get("mixed")

    @pl.when(step == 0)  # type: ignore[untyped-decorator]
    def _start() -> None:
        top[...] = jnp.full_like(top, -jnp.inf)
        total[...] = jnp.zeros_like(total)
        if mixed is not None:
            mixed[...] = jnp.zeros_like(mixed)

    logits = _product(refs["query"][0, 0], refs["key"][0, 0], 1) * scale
    logits = jnp.where(_allowed(refs), logits, -jnp.inf)
    higher = jnp.maximum(top[...], jnp.max(logits, axis=1, keepdims=True))
    level = jnp.where(higher == -jnp.inf, 0.0, higher)
    raised = jnp.exp(logits - level)
    shrink = jnp.exp(top[...] - level)
    total[...] = total[...] * shrink + jnp.sum(raised, axis=1, keepdims=True)
    if mixed is not None:
        value = refs["value"][0, 0]
        mixed[...] = mixed[...] * shrink + _product(raised.astype(value.dtype), value, 0)
    top[...] = higher

    @pl.when(step == blocks - 1)  # type: ignore[untyped-decorator]
    def _finish() -> None:
        some = total[...] > 0
        divisor = jnp.where(some, total[...], 1.0)
        refs["sums"][0, 0] = jnp.where(some, top[...] + jnp.log(divisor), jnp.inf)
        if mixed is not None:
            output = refs["output"]
            output[0, 0] = (mixed[...] / divisor).astype(output.dtype)


def pool_columns(refs: Mapping[str, Ref], *, scale: float, how: str, blocks: int) -> None:
    """Pool over all queries of a head, for one block of slots.

    The grid is (batch, G, slot blocks, R, query blocks).

    Parameters
    ----------
    refs
        As in `attend_rows`; ``sums`` (queries, 1) if softmax weights are pooled, ``weight``
        (queries, 1) if they are weighted; ``pooled`` (1, slots); scratch ``total`` and ``count``.
    how
        ``"sum"``, ``"max"`` or ``"mean"``.
    blocks
        How many blocks of queries there are.
    """
    step = pl.program_id(4)
    total, count = refs["total"], refs.get("count")

    @pl.when(step == 0)  # type: ignore[untyped-decorator]
    def _start() -> None:
        total[...] = jnp.full_like(total, -jnp.inf if how == "max" else 0.0)
        if count is not None:
            count[...] = jnp.zeros_like(count)

    amount = _product(refs["query"][0, 0, 0], refs["key"][0, 0], 1) * scale
    if "sums" in refs:
        amount = jnp.exp(amount - refs["sums"][0, 0, 0])
    if "weight" in refs:
        amount = amount * refs["weight"][0]
    allowed = _allowed(refs)
    if how == "max":
        best = jnp.max(jnp.where(allowed, amount, -jnp.inf), axis=0, keepdims=True)
        total[...] = jnp.maximum(total[...], best)
    else:
        total[...] += jnp.sum(jnp.where(allowed, amount, 0.0), axis=0, keepdims=True)
    if count is not None:
        count[...] += jnp.sum(jnp.where(allowed, 1.0, 0.0), axis=0, keepdims=True)

    @pl.when(step == blocks - 1)  # type: ignore[untyped-decorator]
    def _finish() -> None:
        result = total[...]
        if how == "max":
            result = jnp.where(result == -jnp.inf, 0.0, result)
        if count is not None:
            result = result / jnp.maximum(count[...], 1.0)
        refs["pooled"][0, 0, 0] = result


def _allowed(refs: Mapping[str, Ref]) -> jax.Array:
    """Return which pairs of the block are allowed, (rows, slots)."""
    allowed = refs["key_time"][0, 0] <= refs["query_time"][0]
    if "query_document" in refs:
        allowed = allowed & (refs["key_document"][0, 0] == refs["query_document"][0])
    return allowed


def _product(rows: jax.Array, entries: jax.Array, axis: int) -> jax.Array:
    """Contract the last axis of rows with one axis of entries, into float32.

    Half precision is multiplied as it is; float32 in full, not rounded to bfloat16 first.
    """
    if rows.dtype != entries.dtype:
        rows, entries = rows.astype(jnp.float32), entries.astype(jnp.float32)
    full = lax.Precision.HIGHEST if rows.dtype == jnp.float32 else None
    return lax.dot_general(
        rows, entries, (((1,), (axis,)), ((), ())),
        precision=full, preferred_element_type=jnp.float32,
    )  # fmt: skip
