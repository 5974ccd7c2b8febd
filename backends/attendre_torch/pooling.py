"""Attention weights pooled over queries on the CPU, in the pass that attends.

::

    for each row, K/V head and tile of queries
        logits  = mask + query @ key.T          a tile stays in the cache
        weights = softmax(logits)
        output  = weights @ value               what `attend` returns later
        pooled += sum of weights over queries

A policy that scores by softmax weights then costs about as much as attention alone: the product,
the softmax and the product with the values are those that attention needs anyway.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attendre_core.backend import wide
from attendre_core.eager.parts import groups_of
from attendre_core.ops.pairs import Pairs, Term, allowed_pairs, logits, visible_pairs
from attendre_torch.looking import readable

__all__ = ["attend_or", "pool_or"]

#: With fewer pairs for a K/V head, calls take longer than what they compute.
_WORTH = 2**13
#: Numbers in a tile: with its logits and its weights, it stays in the second cache of a core.
_TILE = 2**18
_NAME = "attended"
_TYPES = (Tensor, torch.nn.Parameter)


def attend_or(otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``attend`` that takes the output that pooling left, if any."""

    @wraps(otherwise)
    def attend(pairs: Pairs, value: Tensor) -> Any:
        done = None if pairs.memo is None else pairs.memo.get(_NAME)
        if done is not None and done[0] is pairs.terms[0] and done[1] is value:
            return done[2]
        return otherwise(pairs, value)

    return attend


def pool_or(fused: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel of ``pool_pairs`` that pools in tiles where the fused one declines."""

    @wraps(fused)
    def pool_pairs(
        pairs: Pairs,
        what: str,
        queries: str = "sum",
        weight: Tensor | None = None,
        value: Tensor | None = None,
    ) -> Any:
        result = fused(pairs, what, queries, weight, value)
        if result is not NotImplemented or not _can(pairs, what, queries, weight, value):
            return result
        return _pooled(pairs, queries, weight, value)

    return pool_pairs


def _can(
    pairs: Pairs, what: str, queries: str, weight: Tensor | None, value: Tensor | None
) -> bool:
    """Decline logits, sinks, gradients, transforms, few pairs, and pairs with known logits."""
    term = pairs.terms[0]
    tensors = [x for x in (term.plain_query, term.plain_key, value, weight) if x is not None]
    if what != "weights" or pairs.sink is not None or "logits" in (pairs.memo or ()):
        return False
    _, _, group, count, slots = _shape(pairs)
    if group * count * slots < _WORTH or (queries == "max" and weight is not None):
        return False
    if not readable(term.plain_key) or torch._C._are_functorch_transforms_active():
        return False
    recorded = torch.is_grad_enabled()
    return all(
        type(x) in _TYPES and x.numel() > 0 and not (recorded and x.requires_grad) for x in tensors
    )


def _pooled(pairs: Pairs, queries: str, weight: Tensor | None, value: Tensor | None) -> Tensor:
    """Pool softmax weights, (batch, G, R, slots), and leave the output for `attend`."""
    batch, heads, group, count, slots = _shape(pairs)
    kind = wide(pairs.terms[0].plain_query).dtype
    visible, valid = visible_pairs(pairs), pairs.query_valid
    barred = _barred(visible, kind)
    empty = ~visible.any(dim=-1, keepdim=True)
    empty = empty if bool(empty.any()) else None
    factor = None
    if weight is not None or not bool(valid.all()):
        factor = valid.to(kind) if weight is None else torch.where(valid, weight, 0.0).to(kind)
    pooled = torch.zeros((batch, heads, group, slots), dtype=kind)
    output = None if value is None else pooled.new_empty((*_shape(pairs)[:4], value.shape[3]))
    length = max(1, min(count, _TILE // (group * slots)))
    write = _writer(pairs)
    tiles = torch.empty((2, group * length * slots), dtype=kind)
    for row, head in product(range(batch), range(heads)):
        values = None if value is None else wide(value[row, head])
        for start in range(0, count, length):
            here = slice(start, min(start + length, count))
            n = here.stop - here.start
            before, weights = tiles[:, : group * n * slots].view(2, group * n, slots)
            mask = None if barred is None else _at(barred, row, head, here)
            write(row, head, here, mask, before)
            torch.softmax(before, -1, out=weights)
            each = weights.view(group, n, slots)
            if empty is not None:
                each.masked_fill_(_at(empty, row, head, here), 0.0)
            if output is not None:
                output[row, head, :, here] = torch.mm(weights, values).view(group, n, -1)
            _add(pooled[row, head], each, queries, None if factor is None else factor[row, here])
    if pairs.memo is not None and output is not None:
        pairs.memo[_NAME] = (pairs.terms[0], value, output)
    if queries == "mean":
        pooled /= allowed_pairs(pairs).sum(3).clamp(min=1)
    return pooled


def _add(pooled: Tensor, weights: Tensor, queries: str, factor: Tensor | None) -> None:
    """Pool a tile, (R, queries, slots), into what earlier tiles gave, (R, slots)."""
    if queries == "max":
        kept = weights if factor is None else weights * factor[:, None]
        torch.maximum(pooled, kept.amax(1), out=pooled)
    else:
        pooled += weights.sum(1) if factor is None else torch.matmul(factor, weights)


def _shape(pairs: Pairs) -> tuple[int, int, int, int, int]:
    """Return batch, G, R, queries and slots."""
    batch, heads, group, count, _ = pairs.terms[0].plain_query.shape
    return batch, heads, group, count, pairs.terms[0].plain_key.shape[2]


def _barred(visible: Tensor, kind: torch.dtype) -> Tensor | None:
    """Return what is added to logits, -inf where a pair may not attend; None if all may."""
    if bool(visible.all()):
        return None
    return torch.zeros(visible.shape, dtype=kind).masked_fill_(~visible, -torch.inf)


def _at(array: Tensor, row: int, head: int, here: slice) -> Tensor:
    """Return the part of one row, K/V head and tile of queries, broadcastable to (R, tile, n)."""
    own = array[row, head if array.shape[1] > 1 else 0]
    return own if own.shape[1] == 1 else own[:, here]


def _writer(pairs: Pairs) -> Callable[[int, int, slice, Tensor | None, Tensor], None]:
    """Return a function that writes the masked logits of a tile into (R * queries, slots)."""
    terms = _single_terms(pairs)
    every = logits(pairs) if terms is None else None

    def write(row: int, head: int, here: slice, mask: Tensor | None, out: Tensor) -> None:
        if every is not None:
            known = every[row, head, :, here]
            each = out.view(known.shape)
            each.copy_(known) if mask is None else torch.add(known, mask, out=each)
        elif terms is not None:
            term, own = terms[row]
            query, key = term.query[own, head, :, here].flatten(0, 1), term.key[own, head].mT
            if mask is None:
                torch.mm(query, key, out=out)
            else:
                out.view(term.query.shape[2], -1, out.shape[1]).copy_(mask)
                out.addmm_(query, key)

    return write


def _single_terms(pairs: Pairs) -> list[tuple[Term, int]] | None:
    """Return the one term that all pairs of a row need, and its row there; None if several."""
    if not pairs.is_plain:
        return None
    if len(pairs.terms) == 1:
        return [(pairs.terms[0], row) for row in range(pairs.query_valid.shape[0])]
    rows = groups_of(pairs)
    if rows is None or any(len(groups) > 1 or len(groups[0].pairs) > 1 for groups in rows):
        return None
    return [(groups[0].pairs[0].terms[0], 0) for groups in rows]
