"""Call the Pallas kernels on arrays of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from attendre_core.eager.fusing import Mask

__all__ = ["attend_rows", "pool_columns"]

#: The last axis of a block is in lanes; one before it in sublanes, 16 of them in half precision.
_LANES, _SUBLANES = 128, 16
#: The most rows and slots of a block: with heads 256 wide, all blocks together take a quarter of
#: the 16 MB of a TPU's vector memory.
_MOST_ROWS, _MOST_SLOTS = 128, 512
_FIRST, _LAST = -(2**31), 2**31 - 1


def attend_rows(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array | None,
    mask: Mask,
    *,
    scale: float,
    interpret: bool,
) -> tuple[jax.Array | None, jax.Array]:
    """Attend; see `attendre_jax.fused.passes.attend_rows`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from attendre_jax.fused import pallas_kernels

    batch, heads, group, queries, dim = query.shape
    rows, slots = group * queries, key.shape[2]
    row_block, slot_block = _row_block(rows), _slot_block(slots)

    def tiled(per_query: jax.Array) -> jax.Array:
        """(batch, queries) for each of the R heads, (batch, rows, 1)."""
        return jnp.tile(per_query, (1, group))[:, :, None]

    arrays = {
        "query": _padded(query.reshape(batch, heads, rows, dim), 2, row_block),
        **_of_slots(key, value, mask, slot_block),
        "query_time": _padded(tiled(mask.query_time), 1, row_block, _FIRST),
    }
    if mask.query_document is not None:
        arrays["query_document"] = _padded(tiled(mask.query_document), 1, row_block)
    padded = arrays["query"].shape[2]
    width = 0 if value is None else value.shape[3]

    def place(name: str) -> Callable[..., Any]:
        if name in ("query", "output", "sums"):
            return lambda b, g, i, j: (b, g, i, 0)
        if name in ("query_time", "query_document"):
            return lambda b, g, i, j: (b, i, 0)
        if name in ("key", "value"):
            return lambda b, g, i, j: (b, g, j, 0)
        per_head = arrays[name].shape[1] > 1
        return lambda b, g, i, j: (b, g if per_head else 0, 0, j)

    results = {"sums": ((batch, heads, padded, 1), jnp.float32)}
    scratch = {"top": (row_block, 1), "total": (row_block, 1)}
    if value is not None:
        dtype = jnp.promote_types(query.dtype, value.dtype)
        results["output"] = ((batch, heads, padded, width), dtype)
        scratch["mixed"] = (row_block, width)
    blocks = _count(arrays["key"].shape[2], slot_block)

    def spec(name: str, shape: tuple[int, ...]) -> Any:
        rows = slot_block if name in ("key", "value") else row_block
        lanes = shape[-1]
        if name in ("key_time", "key_document"):
            rows, lanes = 1, slot_block
        return pl.BlockSpec((*(1,) * (len(shape) - 2), rows, lanes), place(name))

    made = pl.pallas_call(
        _named(
            partial(pallas_kernels.attend_rows, scale=scale, blocks=blocks),
            (*arrays, *results, *scratch),
        ),
        grid=(batch, heads, padded // row_block, blocks),
        in_specs=[spec(name, array.shape) for name, array in arrays.items()],
        out_specs=[spec(name, shape) for name, (shape, _) in results.items()],
        out_shape=[jax.ShapeDtypeStruct(*result) for result in results.values()],
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch.values()],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary")
        ),
        interpret=interpret,
        name="attendre_attend_rows",
    )(*arrays.values())
    sums, *output = made
    whole = (batch, heads, group, queries)
    attended = output[0][:, :, :rows].reshape(*whole, width) if output else None
    return attended, sums[:, :, :rows, 0].reshape(whole)


def pool_columns(
    query: jax.Array,
    key: jax.Array,
    mask: Mask,
    sums: jax.Array | None,
    weight: jax.Array | None,
    *,
    how: str,
    scale: float,
    interpret: bool,
) -> jax.Array:
    """Pool over queries; see `attendre_jax.fused.passes.pool_columns`."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    from attendre_jax.fused import pallas_kernels

    batch, heads, group, queries, _ = query.shape
    slots = key.shape[2]
    row_block, slot_block = _row_block(queries), _slot_block(slots)
    arrays = {
        "query": _padded(query, 3, row_block),
        **_of_slots(key, None, mask, slot_block),
        "query_time": _padded(mask.query_time[:, :, None], 1, row_block, _FIRST),
    }
    if mask.query_document is not None:
        arrays["query_document"] = _padded(mask.query_document[:, :, None], 1, row_block)
    if sums is not None:
        arrays["sums"] = _padded(sums[..., None], 3, row_block)
    if weight is not None:
        arrays["weight"] = _padded(weight.astype(jnp.float32)[:, :, None], 1, row_block)

    def place(name: str) -> Callable[..., Any]:
        if name in ("query", "sums"):
            return lambda b, g, j, r, i: (b, g, r, i, 0)
        if name in ("query_time", "query_document", "weight"):
            return lambda b, g, j, r, i: (b, i, 0)
        if name == "key":
            return lambda b, g, j, r, i: (b, g, j, 0)
        if name == "pooled":
            return lambda b, g, j, r, i: (b, g, r, 0, j)
        per_head = arrays[name].shape[1] > 1
        return lambda b, g, j, r, i: (b, g if per_head else 0, 0, j)

    def spec(name: str, shape: tuple[int, ...]) -> Any:
        of_slots = name in ("key_time", "key_document", "pooled")
        rows = 1 if of_slots else slot_block if name == "key" else row_block
        last = slot_block if of_slots else shape[-1]
        return pl.BlockSpec((*(1,) * (len(shape) - 2), rows, last), place(name))

    padded = arrays["key"].shape[2]
    blocks = arrays["query"].shape[3] // row_block
    result = (batch, heads, group, 1, padded)
    scratch = ["total", *(["count"] if how == "mean" else [])]
    pooled = pl.pallas_call(
        _named(
            partial(pallas_kernels.pool_columns, scale=scale, how=how, blocks=blocks),
            (*arrays, "pooled", *scratch),
        ),
        grid=(batch, heads, padded // slot_block, group, blocks),
        in_specs=[spec(name, array.shape) for name, array in arrays.items()],
        out_specs=spec("pooled", result),
        out_shape=jax.ShapeDtypeStruct(result, jnp.float32),
        scratch_shapes=[pltpu.VMEM((1, slot_block), jnp.float32) for _ in scratch],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "parallel", "arbitrary", "arbitrary")
        ),
        interpret=interpret,
        name="attendre_pool_columns",
    )(*arrays.values())
    kept: jax.Array = pooled[:, :, :, 0, :slots]
    return kept


def _named(kernel: Callable[..., None], names: tuple[str, ...]) -> Callable[..., None]:
    """Pass blocks to a kernel by name."""

    def call(*refs: Any) -> None:
        kernel(dict(zip(names, refs, strict=True)))

    return call


def _of_slots(
    key: jax.Array, value: jax.Array | None, mask: Mask, block: int
) -> Mapping[str, jax.Array]:
    """Return everything that has an axis of slots, padded with empty slots."""
    arrays = {"key": _padded(key, 2, block)}
    if value is not None:
        arrays["value"] = _padded(value, 2, block)
    arrays["key_time"] = _padded(mask.key_time[:, :, None, :], 3, block, _LAST)
    if mask.key_document is not None:
        arrays["key_document"] = _padded(mask.key_document[:, :, None, :], 3, block)
    return arrays


def _padded(array: jax.Array, axis: int, block: int, fill: int = 0) -> jax.Array:
    """Fill the last block of an axis; float16 is widened, for TPUs compute in bfloat16."""
    array = array.astype(jnp.float32) if array.dtype == jnp.float16 else array
    missing = -array.shape[axis] % block
    if not missing:
        return array
    widths = [(0, missing if number == axis else 0) for number in range(array.ndim)]
    return jnp.pad(array, widths, constant_values=fill)


def _row_block(rows: int) -> int:
    return min(_MOST_ROWS, _count(rows, _SUBLANES) * _SUBLANES)


def _slot_block(slots: int) -> int:
    """Return the largest block that adds no more padding than the smallest one."""
    lanes = _count(slots, _LANES)
    return next(n for n in (_MOST_SLOTS, _MOST_SLOTS // 2, _LANES) if not lanes * _LANES % n)


def _count(size: int, block: int) -> int:
    return -(-size // block)
