"""Attention by FlexAttention: biases, soft caps, masks and terms by distance inside one kernel.

``torch.compile`` generates a fused kernel from functions of one pair, which read positions and
tables. Logits and biases of all pairs are never stored. One call per term; several calls are joined
by their sums of exponentials::

    term 0: near      ─► output, log of the sum ─┐
    term 1: far past  ─► output, log of the sum ─┴─► output

It is used in code that is compiled for CUDA, where `scaled_dot_product_attention` has no fused
kernel for the logits. Not compiled, FlexAttention stores all logits, as the plain body does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, flex_attention

from attendre_core.backend import wide
from attendre_core.ops.bias import DistanceBias
from attendre_core.ops.pairs import Pairs, Term
from attendre_torch.constants import constant_in_traces
from attendre_torch.half import inputs_of

__all__ = ["attend", "use_flex"]

#: Triton multiplies blocks of at least 16 features.
_LEAST_FEATURES = 16
_WANTED: ContextVar[bool | None] = ContextVar("use_flex", default=None)
Modify = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
Flag = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@contextmanager
def use_flex(on: bool) -> Iterator[None]:
    """Use FlexAttention wherever it can compute the result, or nowhere, in a ``with`` block.

    Without it, FlexAttention is used in code that is compiled for CUDA, where no other kernel is
    fused. Functions that were compiled before are not affected.
    """
    token = _WANTED.set(on)
    try:
        yield
    finally:
        _WANTED.reset(token)


@constant_in_traces
def _wanted() -> bool | None:
    return _WANTED.get()


def attend(pairs: Pairs, value: Tensor) -> Tensor:
    """Attend in one call per term; decline gradients, and what another kernel does as well."""
    wanted = _wanted()
    if wanted is None and not (torch.compiler.is_compiling() and _pays(pairs, value)):
        return NotImplemented
    if wanted is False or torch.compiler.is_exporting() or _recorded(pairs, value):
        return NotImplemented
    terms = [term for term in pairs.terms if not _only_ahead(term, pairs.causal)]
    parts = [_of_term(pairs, terms, number, value) for number in range(len(terms))]
    output, total = _joined(parts)
    if pairs.sink is not None:
        output = wide(output) * torch.sigmoid(total[..., None] - pairs.sink)
    return output


def _pays(pairs: Pairs, value: Tensor) -> bool:
    """Whether there is a fused kernel here, and no simpler one."""
    key = pairs.terms[0].plain_key
    return (
        value.device.type == "cuda"
        and value.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and min(key.shape[-1], value.shape[-1]) >= _LEAST_FEATURES
        and (len(pairs.terms) > 1 or not pairs.is_plain or pairs.near is not None)
    )


def _recorded(pairs: Pairs, value: Tensor) -> bool:
    """Whether a gradient is needed: the backward pass of FlexAttention is for GPUs alone."""
    if not torch.is_grad_enabled():
        return False
    bias = pairs.bias if isinstance(pairs.bias, DistanceBias) else (pairs.bias,)
    given = [x for term in pairs.terms for x in (term.plain_query, term.plain_key)]
    return any(x.requires_grad for x in (value, pairs.sink, *bias, *given) if x is not None)


def _only_ahead(term: Term, causal: bool) -> bool:
    """Whether a term is for pairs that may not attend."""
    return causal and term.high is not None and term.high <= 0


def _of_term(pairs: Pairs, terms: list[Term], number: int, value: Tensor) -> tuple[Tensor, Tensor]:
    """Attend to the pairs of one term: the output, and the logarithm of its sum of exponentials."""
    *inputs, scale = inputs_of(pairs, terms[number], value)
    query, key, value = (x.detach() for x in inputs)
    batch, heads, group, count, dim = query.shape
    flat, rest = flex_attention(
        query.reshape(batch, heads * group, count, dim),
        key,
        value,
        score_mod=_modification(pairs, terms, number),
        scale=scale,
        enable_gqa=group > 1,
        return_aux=AuxRequest(lse=True),
    )
    output = flat.reshape(batch, heads, group, count, value.shape[3])
    return output, rest.lse.reshape(batch, heads, group, count)


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Combine outputs by their sums of exponentials; zeros where nothing is allowed."""
    if len(parts) == 1:
        return parts[0]
    totals = torch.stack([total for _, total in parts])
    total = torch.logsumexp(totals, dim=0)
    shares = torch.exp(totals - torch.where(total == -torch.inf, 0.0, total))[..., None]
    outputs = torch.stack([wide(output) for output, _ in parts])
    return (shares * outputs).sum(0), total


# ---------------------------------------------------------------- functions of one pair


def _modification(pairs: Pairs, terms: list[Term], number: int) -> Modify:
    """Return the logit of a pair as a function of its product, row, head, query and slot."""
    limit, biased, seen = pairs.limit, _bias(pairs), _visible(pairs)
    inside = _distance_in(pairs, terms, number)

    def modified(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if limit is not None:
            score = limit * torch.tanh(score / limit)
        if biased is not None:
            score = score + biased(b, h, q, k)
        allowed = seen(b, h, q, k)
        if inside is not None:
            allowed = allowed & inside(b, h, q, k)
        return torch.where(allowed, score, -torch.inf)

    return modified


def _sizes(pairs: Pairs) -> tuple[int, int, int, int, int]:
    batch, heads, group, count, _ = pairs.terms[0].plain_query.shape
    return batch, heads, group, count, pairs.terms[0].plain_key.shape[2]


def _visible(pairs: Pairs) -> Flag:
    """See `visible_pairs`."""
    batch, heads, group, count, slots = _sizes(pairs)
    held = pairs.key_valid.expand(batch, heads, slots)
    at_query = pairs.query_position[:, 0, 0].expand(batch, count)
    at_key = pairs.key_position.expand(batch, heads, slots)
    causal, near = pairs.causal, pairs.near
    asked, stored = pairs.documents or (None, None)
    if stored is not None:  # `near` says the same for every pair
        near, stored = None, stored.expand(batch, heads, slots)
    elif near is not None:
        near = near.expand(batch, heads, group, count, slots)

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        flag = held[b, h // group, k]
        if causal:
            flag = flag & (at_key[b, h // group, k] <= at_query[b, q])
        if stored is not None and asked is not None:
            flag = flag & (stored[b, h // group, k] == asked[b, q])
        return flag if near is None else flag & near[b, h // group, h % group, q, k]

    return visible


def _offsets(pairs: Pairs) -> Flag:
    """Return the key's place minus the query's."""
    batch, heads, group, count, slots = _sizes(pairs)
    at_query = pairs.query_place[:, :, 0].expand(batch, heads, count)
    at_key = pairs.key_place.expand(batch, heads, slots)

    def offset(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return at_key[b, h // group, k] - at_query[b, h // group, q]

    return offset


def _distance_in(pairs: Pairs, terms: list[Term], number: int) -> Flag | None:
    """Return whether a pair's logit comes from this term; None = always."""
    if len(terms) == 1:
        return None
    offset = _offsets(pairs)
    own, *later = [(term.low, term.high) for term in terms[number:]]

    def inside(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        distance = -offset(b, h, q, k)
        flag = _within(distance, own)
        for bounds in later:
            flag = flag & ~_within(distance, bounds)
        return flag

    return inside


def _within(distance: Tensor, bounds: tuple[int | None, int | None]) -> Tensor:
    low, high = bounds
    flag = distance == distance if low is None else distance >= low
    return flag if high is None else flag & (distance < high)


def _bias(pairs: Pairs) -> Flag | None:
    """Return the bias of a pair: from a table, from a slope, or from an array of all pairs."""
    bias: Any = pairs.bias
    if bias is None:
        return None
    batch, heads, group, count, slots = _sizes(pairs)
    if not isinstance(bias, DistanceBias):
        every = bias.expand(batch, heads, group, count, slots)
        return lambda b, h, q, k: every[b, h // group, h % group, q, k]
    offset, table, slope = _offsets(pairs), bias.table, bias.slope
    if table is None:
        slopes = slope.reshape(-1)  # type: ignore[union-attr]
        return lambda b, h, q, k: slopes[h] * offset(b, h, q, k).abs()
    by_head, last = table.flatten(1), table.shape[0] // 2
    return lambda b, h, q, k: by_head[offset(b, h, q, k).clamp(-last, last) + last, h]
