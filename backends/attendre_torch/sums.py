"""Sums of logits in compiled code and on accelerators, where no value may be read.

::

    queries by position        6     7     8     9
    sums of those from here on q6789 q789  q89   q9    0
    a key at position 8        ........... q89 · k .......... seen by the queries at 8 and 9

The sum of w q.k over the queries that see a key is (sum of w q).k, and in a causal chunk the
queries that see a key are those at or after its position. So each key takes one of the sums: no
query is multiplied with a key, and nothing depends on how many keys are in the chunk itself.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attendre_core.eager import sums
from attendre_core.ops.pairs import Pairs
from attendre_torch.looking import readable

__all__ = ["causal_sums", "sum_logits"]

_LAST = 2**31 - 1


def sum_logits(pairs: Pairs, weight: Tensor | None = None) -> Tensor:
    """Sum queries before multiplying; decline a bias, a mask, and several terms without reading."""
    unread = pairs.causal and len(pairs.terms) == 1 and not readable(pairs.key_position)
    if not unread or not pairs.is_plain or pairs.near is not None:
        return sums.sum_logits(pairs, weight)
    return causal_sums(pairs, weight)


def causal_sums(pairs: Pairs, weight: Tensor | None = None) -> Tensor:
    """Sum the logits of a single term for each key over the queries at or after its position."""
    query, key = pairs.terms[0].query, pairs.terms[0].key
    if query.dtype.itemsize < 4:
        query, key = query.float(), key.float()
    batch, heads, group, count, dim = query.shape
    factor = pairs.query_valid if weight is None else pairs.query_valid * weight
    at = pairs.key_position  # (batch, 1 or G, slots)
    if count == 1:
        total = (query * factor[:, None, None, :, None])[:, :, :, 0, :]
        late = at > pairs.query_position[:, :, 0, :]
        return torch.matmul(total, key.mT).masked_fill(late[:, :, None, :], 0.0)
    asked = pairs.query_position[:, 0, 0, :]
    ordered = torch.sort(asked, dim=-1).values
    first = torch.nn.functional.pad(ordered, (0, 1), value=_LAST)
    from_here = (asked[:, None, :] >= first[:, :, None]) * factor[:, None, :].to(query.dtype)
    rows = query.permute(0, 3, 1, 2, 4).reshape(batch, count, heads * group * dim)
    suffix = torch.bmm(from_here, rows).reshape(batch, count + 1, heads, group, dim)
    index = torch.searchsorted(ordered, at.flatten(1)).reshape(at.shape).mT[..., None, None]
    summed = suffix.gather(1, index.expand(batch, at.shape[2], heads, group, dim))
    return (summed * key.permute(0, 2, 1, 3)[:, :, :, None, :]).sum(-1).permute(0, 2, 3, 1)
