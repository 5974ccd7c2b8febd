"""Attention weights pooled over queries on the CPU, in the pass that attends.

::

    slots sorted by position              columns:  | seen by all | seen by some | by none
    for each row, K/V head and tile of queries
        weights = softmax(query @ key.T)            | no mask     | mask         | left out
        output  = weights @ value                   what `attend` returns later
        pooled += sum of weights over queries

A policy that scores by softmax weights then costs about as much as attention alone: the product,
the softmax and the product with the values are those that attention needs anyway. Of a full memory,
hardly anything is later than a query, so nearly all pairs need no mask.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from itertools import product
from threading import local
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from attendre_core.backend import wide
from attendre_core.ops.pairs import Pairs, Term, allowed_pairs, logits, visible_pairs
from attendre_torch.looking import readable

__all__ = ["attend_or", "pool_or"]

#: With fewer pairs for a K/V head, calls take longer than what they compute.
_WORTH = 2**13
#: Numbers in a tile, for each thread: it stays in a cache of its core.
_TILE = 2**18
#: Later than every position.
_NEVER = 2**62
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
    valid, factor = pairs.query_valid, None
    if weight is not None or not bool(valid.all()):
        factor = valid.to(kind) if weight is None else torch.where(valid, weight, 0.0).to(kind)
    pooled = torch.zeros((batch, heads, group, slots), dtype=kind)
    output = None
    if value is not None:
        output = pooled.new_empty((batch, heads, count, group, value.shape[3]))
    length = max(1, min(count, _TILE * torch.get_num_threads() // (group * slots)))
    length = -(-count // -(-count // length))  # tiles of about the same length
    numbers = _scratch("weights", (group * length * slots,), kind)
    index, columns_of = _by_position(pairs, value) or _by_mask(pairs, value)
    for row, head in product(range(batch), range(heads)):
        columns = columns_of(row, head)
        for start in range(0, count, length):
            here = slice(start, min(start + length, count))
            weights = _weights(columns, group, here, numbers)
            width = weights.shape[2]
            if output is not None and columns.value is not None:
                part = output[row, head, here].flatten(0, 1)
                torch.mm(weights.flatten(0, 1), columns.value[:width], out=part)
            given = None if factor is None else factor[row, here]
            _add(pooled[row, head, :, :width], weights, queries, given)
    if pairs.memo is not None and output is not None:
        pairs.memo[_NAME] = (pairs.terms[0], value, output.transpose(2, 3))
    if index is not None:
        order = index[:, :, None, :].expand(pooled.shape)
        pooled = torch.empty_like(pooled).scatter_(-1, order, pooled)
    if queries == "mean":
        pooled /= allowed_pairs(pairs).sum(3).clamp(min=1)
    return pooled


class _Kept(local):
    """Memory that a thread uses again and again, by name and dtype.

    The system clears every page of memory that a step gets anew, and large blocks go back to it
    after every step: that took longer than the softmax.
    """

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, torch.dtype], Tensor] = {}


_KEPT = _Kept()


def _scratch(name: str, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
    """Return a tensor with any numbers, which the next call with this name may overwrite."""
    count = math.prod(shape)
    found = _KEPT.blocks.get((name, kind))
    if found is None or found.numel() < count:
        with torch.inference_mode(False):  # or it could not be written to outside of this mode
            found = torch.empty(count, dtype=kind)
        if count <= _TILE * torch.get_num_threads():
            _KEPT.blocks[name, kind] = found
    return found[:count].view(shape)


class _Columns(NamedTuple):
    """The slots that the queries of one row and K/V head attend to, in some order.

    For a tile of queries, ``hidden`` returns how many columns all queries see, how many any of
    them sees, and which of those in between are hidden, (tile, 1 or R, columns) or None; ``write``
    writes logits into (tile, R, columns). ``value`` is (columns, value_dim) or None.
    """

    hidden: Callable[[slice], tuple[int, int, Tensor | None]]
    write: Callable[[slice, Tensor], None]
    value: Tensor | None


#: Where columns are sorted, the slot of each, (batch, 1 or G, columns), and the columns of a head.
_Sorted: TypeAlias = "tuple[Tensor | None, Callable[[int, int], _Columns]]"


def _weights(columns: _Columns, group: int, here: slice, numbers: Tensor) -> Tensor:
    """Return the weights of a tile, (tile, R, columns), written into ``numbers``."""
    n = here.stop - here.start
    whole, width, hidden = columns.hidden(here)
    weights = numbers[: n * group * width].view(n, group, width)
    columns.write(here, weights)
    if hidden is not None:
        weights[:, :, whole:].masked_fill_(hidden, -torch.inf)
    torch.softmax(weights, -1, out=weights)
    if hidden is not None and whole == 0:
        weights.masked_fill_(hidden.all(-1, keepdim=True), 0.0)
    return weights


def _add(pooled: Tensor, weights: Tensor, queries: str, factor: Tensor | None) -> None:
    """Pool a tile, (queries, R, columns), into what earlier tiles gave, (R, columns)."""
    if queries == "max":
        kept = weights if factor is None else weights * factor[:, None, None]
        torch.maximum(pooled, kept.amax(0), out=pooled)
    elif factor is None:
        pooled += weights.sum(0)
    else:
        pooled += torch.mv(weights.flatten(1).mT, factor).view(pooled.shape)


def _shape(pairs: Pairs) -> tuple[int, int, int, int, int]:
    """Return batch, G, R, queries and slots."""
    batch, heads, group, count, _ = pairs.terms[0].plain_query.shape
    return batch, heads, group, count, pairs.terms[0].plain_key.shape[2]


def _by_position(pairs: Pairs, value: Tensor | None) -> _Sorted | None:
    """Sort slots by position; None if more than positions decides who sees what."""
    if pairs.near is not None or not pairs.is_plain:
        return None
    held = pairs.key_valid.numpy()
    asked = pairs.query_position.expand(held.shape[0], -1, -1, -1)[:, 0, 0].numpy()
    term, *others = pairs.terms
    at = np.where(held, pairs.key_position.numpy(), np.int64(_NEVER))
    order = np.argsort(at, axis=-1)
    at, index, used = np.take_along_axis(at, order, -1), torch.from_numpy(order), held.sum(-1)

    def columns(row: int, head: int) -> _Columns:
        place = head if at.shape[1] > 1 else 0
        when, slots = at[row, place], index[row, place]
        query, key = _rows(term, row, head), _keys(term, row, head, slots)

        def hidden(here: slice) -> tuple[int, int, Tensor | None]:
            if not pairs.causal:
                return used[row, place], used[row, place], None
            now = asked[row, here]
            whole, width = when.searchsorted((now.min(), now.max()), side="right").tolist()
            if whole == width:
                return whole, width, None
            late = when[None, None, whole:width] > now[:, None, None]
            return whole, width, torch.from_numpy(late)

        def write(here: slice, out: Tensor) -> None:
            torch.mm(query[here].flatten(0, 1), key[: out.shape[2]].mT, out=out.flatten(0, 1))
            for other in others:
                _override(pairs, other, (row, head), here, slots[: out.shape[2]], out)

        mixed = None if value is None else wide(_taken("value", value[row, head], slots))
        return _Columns(hidden, write, mixed)

    return index, columns


def _override(
    pairs: Pairs, term: Term, which: tuple[int, int], here: slice, slots: Tensor, out: Tensor
) -> None:
    """Replace the logits of a tile, (tile, R, slots), where another term applies.

    Few slots are so far away, so only their columns are multiplied again.
    """
    if pairs.causal and term.high is not None and term.high <= 0:
        return  # only pairs that may not attend
    row, head = which
    heads = pairs.key_place.shape[1]
    asked = pairs.query_place.expand(pairs.key_place.shape[0], -1, -1, -1)[row, 0, 0, here]
    at = pairs.key_place[row, head if heads > 1 else 0, slots]
    low = -np.inf if term.low is None else term.low
    high = np.inf if term.high is None else term.high
    some = (asked.max() - at >= low) & (asked.min() - at < high)
    columns = some.nonzero()[:, 0]
    if columns.numel() == 0:
        return
    distance = asked[:, None, None] - at[columns]
    rows = _rows(term, row, head)[here].flatten(0, 1)
    own = torch.mm(rows, _keys(term, row, head, slots[columns], "other key").mT)
    before = out[:, :, columns]
    inside = (distance >= low) & (distance < high)
    out[:, :, columns] = torch.where(inside, own.view(before.shape), before)


def _rows(term: Term, row: int, head: int) -> Tensor:
    """Return the rotated queries of a K/V head, (queries, R, head_dim)."""
    return term.query[row, head].transpose(0, 1).contiguous()


def _keys(term: Term, row: int, head: int, slots: Tensor, name: str = "key") -> Tensor:
    """Return the rotated keys of some slots, (n, head_dim)."""
    at = term.key_at
    if term.rotate is None or at is None or at.shape[2] > 1:
        return _taken(name, term.key[row, head], slots)
    # One angle for all: of the keys that are so far away, few are needed.
    return term.rotate(wide(_taken(name, term.plain_key[row, head], slots)), at[row, 0])


def _taken(name: str, array: Tensor, slots: Tensor) -> Tensor:
    """Select some slots of (slots, dim), into memory that is used again."""
    shape = (slots.shape[0], array.shape[1])
    return torch.index_select(array, 0, slots, out=_scratch(name, shape, array.dtype))


def _by_mask(pairs: Pairs, value: Tensor | None) -> _Sorted:
    """Take all slots as they are, and mask those that may not be attended to."""
    every, barred = logits(pairs), ~visible_pairs(pairs)

    def columns(row: int, head: int) -> _Columns:
        own = barred[row, head if barred.shape[1] > 1 else 0].transpose(0, 1)

        def hidden(here: slice) -> tuple[int, int, Tensor | None]:
            part = own if own.shape[0] == 1 else own[here]
            return 0, every.shape[4], part.expand(here.stop - here.start, -1, -1)

        def write(here: slice, out: Tensor) -> None:
            out.copy_(every[row, head, :, here].transpose(0, 1))

        return _Columns(hidden, write, None if value is None else wide(value[row, head]))

    return None, columns
