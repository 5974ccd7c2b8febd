"""Which pairs are allowed, as two times to compare, so that a kernel needs no matrix of flags."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attendre_core.ops.pairs import Pairs

__all__ = ["Mask", "mask_of"]

_FIRST, _LAST = -(2**31), 2**31 - 1


class Mask(NamedTuple):
    """A pair is allowed if the slot's time is not after the query's and the documents are equal.

    Attributes
    ----------
    query_time
        int32, (batch, queries), contiguous.
    key_time
        int32, (batch, 1 or G, slots), contiguous.
    query_document, key_document
        Ids shaped likewise, or None where all belong together.
    """

    query_time: Tensor
    key_time: Tensor
    query_document: Tensor | None = None
    key_document: Tensor | None = None


def mask_of(pairs: Pairs) -> Mask:
    """Return the mask of pairs whose `near` is None or compares documents.

    Times are positions if the pairs are causal, else all equal. The time of an invalid query
    comes before, that of an empty slot after all others.
    """
    query_at, key_at = pairs.query_position[:, 0, 0, :], pairs.key_position
    if not pairs.causal:
        query_at, key_at = torch.zeros_like(query_at), torch.zeros_like(key_at)
    query_time = torch.where(pairs.query_valid, query_at, _FIRST)
    key_time = torch.where(pairs.key_valid, key_at, _LAST)
    times = query_time.to(torch.int32).contiguous(), key_time.to(torch.int32).contiguous()
    if pairs.documents is None:
        return Mask(*times)
    return Mask(*times, *(ids.contiguous() for ids in pairs.documents))
