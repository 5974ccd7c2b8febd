"""Soft masks: a policy fades entries out before they are evicted.

A mask m in [0, 1] multiplies the softmax weights, which are then normalised again. That is the
softmax of logits + log m, so it is a bias; pairs with m = 0 may not attend.
"""

from __future__ import annotations

from copy import copy

from attendre_core.backend import namespace_of, wide
from attendre_core.errors import ShapeError
from attendre_core.policies.base import Policy
from attendre_core.policies.view import Attention

__all__ = ["soften"]

#: The smallest mask whose logarithm is taken; with less, a pair has no weight that counts.
_LEAST = 1e-30


def soften(policy: Policy, attention: Attention) -> Attention:
    """Return the view of the same queries with the policy's mask on their weights.

    What the policy sees in order to compute the mask is not cut from gradients.
    """
    view = copy(attention)
    view._cut = _same
    name, mask = type(policy).__name__, policy.soft_mask(view.stored, view)
    pairs, xp = attention._pairs, namespace_of(mask)
    batch, heads, group, queries, _ = pairs.terms[0].plain_query.shape
    whole = (batch, heads, group, queries, attention.stored.valid.shape[-1])
    given = tuple(mask.shape)
    if len(given) != 5 or any(n not in (1, m) for n, m in zip(given, whole, strict=True)):
        raise ShapeError(
            f"{name}.soft_mask: returned shape {given}, expected (batch, kv_heads, group, queries, "
            f"slots) = {whole}, or 1 in place of an axis along which it is the same."
        )
    mask = wide(mask)
    bias = xp.log(xp.maximum(mask, xp.full_like(mask, _LEAST)))
    near = mask > 0
    result = copy(attention)
    result._seen = attention.seen  # whether an entry was compared, not whether it was used
    result.mask = mask
    result._pairs = pairs._replace(
        bias=bias if pairs.bias is None else pairs.added + bias,
        near=near if pairs.near is None else near & pairs.near,
        documents=None,
        memo={},
    )
    return result


def _same(x: object) -> object:
    return x
