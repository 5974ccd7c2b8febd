"""The launches as operators of PyTorch, which ``torch.compile`` takes as they are."""

from __future__ import annotations

import torch
from torch import Tensor

from attendre_core.eager.fusing import Mask
from attendre_torch.fused import launch

__all__ = ["attend_rows", "pool_columns"]


def attend_rows(
    query: Tensor, key: Tensor, value: Tensor | None, mask: Mask, scale: float = 1.0
) -> tuple[Tensor | None, Tensor]:
    """Launch as in `launch.attend_rows`."""
    output, sums = _attend_rows(query, key, value, *mask, scale)
    return None if value is None else output, sums


def pool_columns(
    query: Tensor,
    key: Tensor,
    mask: Mask,
    sums: Tensor | None,
    weight: Tensor | None,
    how: str,
    scale: float = 1.0,
) -> Tensor:
    """Launch as in `launch.pool_columns`."""
    result: Tensor = _pool_columns(query, key, *mask, sums, weight, how, scale)
    return result


def _rows(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    query_time: Tensor,
    key_time: Tensor,
    query_document: Tensor | None,
    key_document: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    mask = Mask(query_time, key_time, query_document, key_document)
    output, sums = launch.attend_rows(query, key, value, mask, scale)
    return sums.new_empty(0) if output is None else output, sums


def _shapes_of_rows(
    query: Tensor, key: Tensor, value: Tensor | None, *rest: object
) -> tuple[Tensor, Tensor]:
    sums = query.new_empty(query.shape[:4], dtype=torch.float32)
    if value is None:
        return sums.new_empty(0), sums
    dtype = torch.promote_types(torch.promote_types(query.dtype, key.dtype), value.dtype)
    return query.new_empty((*query.shape[:4], value.shape[3]), dtype=dtype), sums


def _columns(
    query: Tensor,
    key: Tensor,
    query_time: Tensor,
    key_time: Tensor,
    query_document: Tensor | None,
    key_document: Tensor | None,
    sums: Tensor | None,
    weight: Tensor | None,
    how: str,
    scale: float,
) -> Tensor:
    mask = Mask(query_time, key_time, query_document, key_document)
    return launch.pool_columns(query, key, mask, sums, weight, how, scale)


def _shape_of_columns(query: Tensor, key: Tensor, *rest: object) -> Tensor:
    return query.new_empty((*query.shape[:3], key.shape[2]), dtype=torch.float32)


_TENSORS = "Tensor query_time, Tensor key_time, Tensor? query_document, Tensor? key_document"
_attend_rows = torch.library.custom_op(
    "attendre::attend_rows",
    _rows,
    mutates_args=(),
    schema=(
        f"(Tensor query, Tensor key, Tensor? value, {_TENSORS}, float scale) -> (Tensor, Tensor)"
    ),
)
_attend_rows.register_fake(_shapes_of_rows)
_pool_columns = torch.library.custom_op(
    "attendre::pool_columns",
    _columns,
    mutates_args=(),
    schema=(
        f"(Tensor query, Tensor key, {_TENSORS}, Tensor? sums, Tensor? weight, str how, "
        "float scale) -> Tensor"
    ),
)
_pool_columns.register_fake(_shape_of_columns)
