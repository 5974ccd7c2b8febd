"""What a fused kernel needs of pairs: the factors of their logits, and times instead of a mask.

A kernel that never stores a matrix of all pairs cannot be given a matrix of flags either: it
compares the times of a query and a slot.
"""

from __future__ import annotations

from typing import NamedTuple

from attendre_core.backend import Array, namespace_of
from attendre_core.eager.rounded import rounded_query
from attendre_core.ops.pairs import Pairs

__all__ = ["Mask", "can_fuse", "factors_of", "mask_of"]

_FIRST, _LAST = -(2**31), 2**31 - 1


class Mask(NamedTuple):
    """A pair is allowed if the slot's time is not after the query's and the documents are equal.

    Attributes
    ----------
    query_time
        int32, (batch, queries).
    key_time
        int32, (batch, 1 or G, slots).
    query_document, key_document
        Ids shaped likewise, or None where all belong together.
    """

    query_time: Array
    key_time: Array
    query_document: Array | None = None
    key_document: Array | None = None


def can_fuse(pairs: Pairs) -> bool:
    """Return whether logits are one product, and a `Mask` says which pairs are allowed."""
    if len(pairs.terms) > 1 or pairs.terms[0].bounded or not pairs.is_plain:
        return False
    return pairs.near is None or pairs.documents is not None


def mask_of(pairs: Pairs) -> Mask:
    """Return the mask of pairs that can be fused.

    Times are positions if the pairs are causal, else all equal. The time of an invalid query
    comes before, that of an empty slot after all others.
    """
    xp = namespace_of(pairs.query_valid)
    query_at, key_at = pairs.query_position[:, 0, 0, :], pairs.key_position
    if not pairs.causal:
        query_at, key_at = xp.zeros_like(query_at), xp.zeros_like(key_at)
    query_time = xp.where(pairs.query_valid, query_at, xp.full_like(query_at, _FIRST))
    key_time = xp.where(pairs.key_valid, key_at, xp.full_like(key_at, _LAST))
    return Mask(query_time, key_time, *(pairs.documents or ()))


def factors_of(pairs: Pairs) -> tuple[Array, Array, float]:
    """Return queries, keys and a scale, whose product are the logits of pairs that can be fused.

    Keys that are not rotated are given as they are stored. If queries are not rotated either, so
    are they: products of half precision are exact in float32. What was rotated stays in float32:
    a score does not depend on where it is computed.
    """
    term = pairs.terms[0]
    turned = [term.rotate is not None and at is not None for at in (term.query_at, term.key_at)]
    query, key = term.query, term.key if turned[1] else term.plain_key
    if any(turned) or namespace_of(key).finfo(key.dtype).bits >= 32:
        return query, key, 1.0
    return rounded_query(term, pairs.scale), key, pairs.scale
