"""Entries beside a memory: attended to together with the stored ones, in one softmax.

::

    memory  | k k k k |─► logits ─┐
                                  ├─► one softmax ─► output
    beside  | k k |    ─► logits ─┘

The memory sees the others as one more logit, the log of the sum of their exponentials (a sink), so
every kernel that knows sinks can compute its part. What the sink takes of the weight is theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core import checks, ops
from attendre_core.backend import Array, namespace_of
from attendre_core.positions.base import Encoding, Places

__all__ = ["Beside", "Joined", "join"]

#: A logit without weight; its exponential is 0, and differences to it are finite.
_NOTHING = -1e30


class Beside(NamedTuple):
    """Entries that queries attend to together with those of a memory.

    They are not stored, not evicted and not scored; the weights that the memory's policy sees are
    those of the joint softmax. With ``top_k``, a query attends to the K best stored entries and to
    all entries beside them.

    Attributes
    ----------
    key, value
        (batch, any, kv_heads, dim), without positions.
    valid
        Boolean, (batch, any); None = all valid.
    position
        int32, (batch, any): the position scheme and ``causal`` apply. None: the entries have no
        positions, and every query may attend to them.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> memory = at.KeyValueMemory(size=4)
    >>> one = np.ones((1, 1, 1, 2), dtype=np.float32)
    >>> state, _ = memory.insert(memory.init(like=one), one, one)
    >>> state, output = memory.attend(state, one, beside=at.Beside(one, 3 * one))
    >>> output[0, 0, 0].tolist()
    [2.0, 2.0]
    """

    key: Array
    value: Array
    valid: Array | None = None
    position: Array | None = None


class Joined(NamedTuple):
    """A memory's part of the joint softmax.

    Attributes
    ----------
    pairs
        Queries against stored entries; the entries beside them are in the sink.
    value
        (batch, G, slots, value_dim + 1): the stored values, and a one that adds up the weights.
    others
        (batch, G, R, queries, value_dim): what the queries get if all weight is the sink's.
    """

    pairs: ops.Pairs
    value: Array
    others: Array


def join(
    where: str, beside: Beside, query: Array, pairs: ops.Pairs, value: Array, places: Places,
    encoding: Encoding, params: Any,
) -> Joined:  # fmt: skip
    """Let other entries take part in the softmax over stored ones.

    Parameters
    ----------
    query
        (batch, G, R, queries, head_dim), scaled, without positions.
    pairs, value
        Queries against stored entries, and their values, (batch, G, slots, value_dim).
    places
        Where `pairs` are; of the keys nothing is used.
    encoding, params
        The position scheme, for entries that have positions.
    """
    xp = namespace_of(value)
    other, their_value = _pairs(where, beside, query, pairs, value, places, encoding, params)
    logits = ops.logits(other)
    logits = xp.where(ops.visible_pairs(other), logits, -float("inf"))
    top = xp.max(logits, axis=-1, keepdims=True)
    some = top > -float("inf")
    top = xp.where(some, top, xp.zeros_like(top))
    raised = xp.exp(logits - top)
    total = xp.sum(raised, axis=-1, keepdims=True, dtype=raised.dtype)
    total = xp.where(some, total, xp.ones_like(total))
    others = ops.mix(raised / total, their_value)
    sink = xp.where(some, top + xp.log(total), xp.full_like(top, _NOTHING))
    if pairs.sink is not None:
        theirs, sink = sink, xp.logaddexp(sink, xp.broadcast_to(pairs.sink, sink.shape))
        others = others * xp.exp(theirs - sink)
    ones = xp.ones_like(value[..., :1])
    return Joined(pairs._replace(sink=sink), xp.concat([value, ones], axis=-1), others)


def _pairs(
    where: str, beside: Beside, query: Array, pairs: ops.Pairs, value: Array, places: Places,
    encoding: Encoding, params: Any,
) -> tuple[ops.Pairs, Array]:  # fmt: skip
    """Check the entries; return the queries against them, and their values."""
    dtype = pairs.terms[0].plain_key.dtype
    batch, heads, _, dim = pairs.terms[0].plain_key.shape
    checks.heads(where, "beside.key", beside.key, (batch, None, heads, dim))
    count = beside.key.shape[1]
    checks.heads(where, "beside.value", beside.value, (batch, count, heads, value.shape[3]))
    checks.same_dtype(where, "beside.key", beside.key, dtype)
    checks.same_dtype(where, "beside.value", beside.value, value.dtype)
    lead = (batch, count)
    valid = checks.flags(where, "beside.valid", beside.valid, lead, beside.key, default=True)
    for name, array in (("key", beside.key), ("value", beside.value)):
        valid = valid & checks.finite_rows(where, f"beside.{name}", array, valid, (0, 1))
    xp = namespace_of(value)
    key, theirs = (
        ops.fill(xp.permute_dims(x, (0, 2, 1, 3)), ~valid[:, None, :, None], 0.0)
        for x in (beside.key, beside.value)
    )
    if beside.position is None:
        # At the place of the last query, where a scheme is not asked: the plain product counts.
        at = xp.zeros_like(valid, dtype=xp.int32)
        other = pairs._replace(
            key_position=at[:, None, :], key_valid=valid[:, None, :], order=at[:, None, :],
            terms=(ops.Term(query, key),), key_place=at[:, None, :], bias=None,
            near=None, causal=False, memo={}, sink=None, documents=None,
        )  # fmt: skip
        return other, theirs
    hint = "Give one number to each entry, or None to all."
    checks.shape(where, "beside.position", beside.position, "batch, any", lead, hint)
    position = checks.positions(where, "beside.position", beside.position, valid)
    # Counted from the same place as those of the memory's keys.
    since = (pairs.query_position - places.query)[:, :1, 0, :1]
    key_valid = valid[:, None, :]
    here = Places(places.query, position[:, None, :] - since, places.query_valid, key_valid)
    encoded = encoding.encode(query, key, here, params)
    other = pairs._replace(
        key_position=position[:, None, :], key_valid=key_valid, order=position[:, None, :],
        terms=encoded.terms, query_place=encoded.places.query, key_place=encoded.places.key,
        bias=encoded.bias, near=encoded.near, memo={}, limit=encoded.limit, sink=None,
        documents=None,
    )  # fmt: skip
    return other, theirs
