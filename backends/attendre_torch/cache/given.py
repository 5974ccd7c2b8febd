"""What a model adds to attention: a limit of the logits, a sink, a mask or bias of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attendre_core.positions.base import Encoded, Encoding, Places
from attendre_core.positions.none import NoPosition

__all__ = ["Given", "Pairwise", "pairwise_of"]


class Pairwise(NamedTuple):
    """A mask or bias for every query and every token that arrived, held or not.

    Attributes
    ----------
    near
        Boolean, (batch or 1, heads or 1, queries, tokens): which pairs may attend; or None.
    bias
        Likewise, added to the logits; or None.
    last
        int64, (batch or 1, 1): the index from which places are counted.
    """

    near: Tensor | None
    bias: Tensor | None
    last: Tensor = None

    def present(self, start: int) -> Tensor | None:
        """Return which tokens from ``start`` on may attend to themselves, (batch, queries)."""
        if self.near is None:
            return None
        return self.near[:, 0, :, start:].diagonal(dim1=-2, dim2=-1)

    def rows(self, start: int, count: int, valid: Tensor | None) -> Pairwise:
        """Return the pairs of ``count`` queries; the first has index ``start``."""
        first = start - self._start
        rows = slice(first, first + count)
        index = torch.arange(start, start + count, device=self._any.device)[None]
        last = index[:, -1:] if valid is None else (index * valid).amax(1, keepdim=True)
        near = None if self.near is None else self.near[:, :, rows]
        bias = None if self.bias is None else self.bias[:, :, rows]
        return Pairwise(near, bias, last)

    @property
    def _any(self) -> Tensor:
        return self.bias if self.near is None else self.near

    @property
    def _start(self) -> int:
        return int(self._any.shape[3] - self._any.shape[2])

    def at(self, places: Places, heads: int) -> tuple[Tensor | None, Tensor | None]:
        """Return mask and bias for the slots, (batch, kv_heads or 1, group or 1, ...)."""
        index = places.key + self.last[:, :, None]
        index = index.clamp(0, self._any.shape[3] - 1).to(torch.int64)

        def taken(table: Tensor | None) -> Tensor | None:
            if table is None:
                return None
            batch, own, queries, _ = table.shape
            groups = heads if own > 1 else 1
            table = table.reshape(batch, groups, own // groups, queries, -1)
            each = max(groups, index.shape[1])  # heads may hold different tokens
            where = index[:, :, None, None, :].expand(-1, each, table.shape[2], queries, -1)
            return table.expand(where.shape[0], each, -1, -1, -1).gather(4, where)

        return taken(self.near), taken(self.bias)


def pairwise_of(mask: Any, bias: Tensor | None, count: int, seen: int) -> Pairwise:
    """Split a mask, boolean or added to the logits, into what may attend and what is added."""
    near = None
    if isinstance(mask, Tensor):
        mask = mask[..., :seen]
        if mask.dtype == torch.bool:
            near = mask
        else:
            near = mask > torch.finfo(mask.dtype).min / 2
            added = torch.where(near, mask, 0.0)
            bias = added if bias is None else bias + added
    if bias is not None:
        bias = bias[:, :, -count:, :seen].float()
    return Pairwise(near, bias)


@dataclass(frozen=True)
class Given(Encoding):
    """A position scheme with what a model of transformers adds to attention.

    Its parameters are a tuple: those of the inner scheme, the logits of the sink (heads,) and a
    `Pairwise`.

    Parameters
    ----------
    inner
        The scheme.
    limit
        Logits are ``limit * tanh(logits / limit)``; None = as they are.
    sink
        Whether every head has a logit that takes a part of the softmax and gives nothing.
    pairwise
        Whether the model gives a mask or bias.
    """

    inner: Encoding = NoPosition()
    limit: float | None = None
    sink: bool = False
    pairwise: bool = False

    @property
    def simplest(self) -> Encoding:
        """The inner scheme if nothing is added."""
        plain = self.limit is None and not self.sink and not self.pairwise
        return self.inner if plain else self

    def encode(self, query: Tensor, key: Tensor, places: Places, params: Any = None) -> Encoded:
        """Apply the inner scheme and add what the model gives."""
        inner, sink, pairwise = params
        encoded = self.inner.encode(query, key, places, inner)
        if self.limit is not None:
            encoded = encoded._replace(limit=self.limit)
        if sink is not None:
            logits = sink.to(query.dtype).reshape(1, *query.shape[1:3], 1, 1)
            encoded = encoded._replace(sink=logits)
        if pairwise is not None:
            near, bias = pairwise.at(places, key.shape[1])
            if near is not None:
                encoded = encoded._replace(near=near)
            if bias is not None:
                encoded = encoded._replace(bias=bias.to(query.dtype))
        return encoded
