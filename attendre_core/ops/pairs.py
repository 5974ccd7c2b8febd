"""Queries against keys: how their logits are computed, and which queries may attend to which keys.

In shapes, G is the number of K/V heads and R the number of query heads per K/V head.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from attendre_core.backend import Array, namespace_of, op, wide
from attendre_core.ops.bias import DistanceBias
from attendre_core.ops.dense import logits_of, masked_softmax, mix, pool_queries
from attendre_core.ops.slots import gather_slots

__all__ = [
    "Pairs", "Term", "allowed_pairs", "attend", "grouped", "logits", "select_queries",
    "sum_logits", "ungrouped", "visible_pairs",
]  # fmt: skip

Rotate = Callable[[Array, Array], Array]


def grouped(query: Array, kv_heads: int) -> Array:
    """Group query heads by K/V head.

    Parameters
    ----------
    query
        (batch, queries, heads, head_dim); query head h belongs to K/V head h // (heads / G).

    Returns
    -------
    array
        (batch, kv_heads, group, queries, head_dim).
    """
    xp = namespace_of(query)
    batch, count, heads, dim = query.shape
    rows = xp.reshape(query, (batch, count, kv_heads, heads // kv_heads, dim))
    return xp.permute_dims(rows, (0, 2, 3, 1, 4))


def ungrouped(output: Array) -> Array:
    """Reshape (batch, kv_heads, group, queries, dim) back to (batch, queries, heads, dim)."""
    xp = namespace_of(output)
    batch, heads, group, count, dim = output.shape
    return xp.reshape(xp.permute_dims(output, (0, 3, 1, 2, 4)), (batch, count, heads * group, dim))


class Term:
    """For pairs at a distance in [low, high), the logit is rotated query times rotated key.

    The distance is the query's place minus the key's (see `Pairs`). Queries and keys are rotated
    on first use, and only once; in float32 if they are stored in half precision.

    Parameters
    ----------
    plain_query
        (batch, G, R, queries, head_dim), scaled.
    plain_key
        (batch, G, slots, head_dim).
    rotate
        ``rotate(x, at)`` applies positions; None applies none.
    query_at, key_at
        The positions to apply, (batch, 1 or G, 1, queries) and (batch, 1 or G, 1 or slots); None
        leaves that side unrotated.
    low, high
        Bounds of the distance; None = unbounded.
    """

    __slots__ = (
        "_key", "_keys_of", "_query", "high", "key_at", "low", "plain_key", "plain_query",
        "query_at", "rotate",
    )  # fmt: skip

    def __init__(
        self,
        plain_query: Array,
        plain_key: Array,
        rotate: Rotate | None = None,
        query_at: Array | None = None,
        key_at: Array | None = None,
        low: int | None = None,
        high: int | None = None,
    ) -> None:
        self.plain_query, self.plain_key = plain_query, plain_key
        self.rotate, self.query_at, self.key_at = rotate, query_at, key_at
        self.low, self.high = low, high
        self._query: Array | None = None
        self._key: Array | None = None
        self._keys_of: Term | None = None

    @property
    def query(self) -> Array:
        """The rotated queries, (batch, G, R, queries, head_dim), in float32 at least."""
        if self._query is None:
            plain, at = wide(self.plain_query), self.query_at
            self._query = plain if self.rotate is None or at is None else self.rotate(plain, at)
        return self._query

    @property
    def key(self) -> Array:
        """The rotated keys, (batch, G, slots, head_dim), in float32 at least."""
        if self._keys_of is not None:
            return self._keys_of.key
        if self._key is None:
            plain, at = wide(self.plain_key), self.key_at
            self._key = plain if self.rotate is None or at is None else self.rotate(plain, at)
        return self._key

    def with_query(self, query: Array, at: Array | None) -> Term:
        """Return the same term for other queries; the rotated keys are shared."""
        other = Term(query, self.plain_key, self.rotate, at, self.key_at, self.low, self.high)
        other._keys_of = self
        return other

    @property
    def bounded(self) -> bool:
        """Whether the term applies to some distances only."""
        return self.low is not None or self.high is not None


class Pairs(NamedTuple):
    """Every query of a step against every slot.

    Attributes
    ----------
    query_position
        int32, (batch, 1, 1, queries).
    key_position
        int32, (batch, 1 or G, slots).
    query_valid
        Boolean, (batch, queries).
    key_valid
        Boolean, (batch, 1 or G, slots).
    order
        int32, (batch, 1 or G, slots), distinct within a row: of equal logits the one with the
        higher order is retrieved.
    terms
        A pair's logit comes from the last term whose bounds contain its distance; the first term
        is unbounded.
    query_place, key_place
        The positions between which distances are measured, shaped as in a `Term`.
    bias
        Added to the logits: None, a `DistanceBias`, or an array that is broadcastable to (batch,
        G, R, queries, slots).
    near
        Boolean, broadcastable likewise: False for pairs that may not attend; None = all may.
    causal
        Whether queries attend only to keys at or before their position.
    memo
        A dict in which one step keeps what its ops and kernels share, or None.
    limit
        Logits x become ``limit * tanh(x / limit)`` before the bias is added; None = as they are.
    sink
        Broadcastable to (batch, G, R, queries, 1): a logit that takes part in the softmax and has
        no value; None = none.
    scale
        The factor that the queries already contain.
    documents
        Ids of the queries' and of the slots' documents, (batch, queries) and (batch, 1 or G,
        slots), if `near` says which of them are equal and nothing else; None otherwise.
    """

    query_position: Array
    key_position: Array
    query_valid: Array
    key_valid: Array
    order: Array
    terms: tuple[Term, ...]
    query_place: Array
    key_place: Array
    bias: Array | DistanceBias | None = None
    near: Array | None = None
    causal: bool = False
    memo: dict[str, Any] | None = None
    limit: float | None = None
    sink: Array | None = None
    scale: float = 1.0
    documents: tuple[Array, Array] | None = None

    @property
    def is_plain(self) -> bool:
        """Whether logits are products of queries and keys, and nothing else."""
        return self.bias is None and self.limit is None and self.sink is None

    @property
    def added(self) -> Array:
        """The bias of every pair, broadcastable to (batch, G, R, queries, slots)."""
        bias, memo = self.bias, {} if self.memo is None else self.memo
        if isinstance(bias, DistanceBias) and "bias" not in memo:
            memo["bias"] = bias.of(self.query_place, self.key_place)
        return memo.get("bias", bias)


def visible_pairs(pairs: Pairs) -> Array:
    """Return which entries each query may attend to, as if all queries were valid.

    Boolean, broadcastable to (batch, G, R, queries, slots). This is enough for outputs, because
    those of invalid queries are dropped, and it often needs no axis for queries.
    """
    visible = pairs.key_valid[:, :, None, None, :]
    if pairs.causal:
        xp = namespace_of(visible)
        at = xp.where(pairs.key_valid, pairs.key_position, 2**31 - 1)
        visible = at[:, :, None, None, :] <= pairs.query_position[..., None]
    return visible if pairs.near is None else visible & pairs.near


def allowed_pairs(pairs: Pairs) -> Array:
    """Return which pairs count: the query is valid and may attend to the entry."""
    return visible_pairs(pairs) & pairs.query_valid[:, None, None, :, None]


def select_queries(pairs: Pairs, index: Array) -> Pairs:
    """Return the pairs of some queries alone: ``index`` is (batch, count)."""
    xp = namespace_of(index)

    def only(array: Array | None, axis: int) -> Array | None:
        if array is None or array.shape[axis] == 1:
            return array
        array = xp.broadcast_to(array, (index.shape[0], *array.shape[1:]))
        return gather_slots(array, index, axis=axis)

    return pairs._replace(
        query_position=only(pairs.query_position, 3),
        query_valid=only(pairs.query_valid, 1),
        terms=tuple(x.with_query(only(x.plain_query, 3), only(x.query_at, 3)) for x in pairs.terms),
        query_place=only(pairs.query_place, 3),
        bias=pairs.bias if isinstance(pairs.bias, DistanceBias) else only(pairs.bias, 3),
        near=only(pairs.near, 3),
        memo={},
        sink=only(pairs.sink, 3),
        documents=pairs.documents and (only(pairs.documents[0], 1), pairs.documents[1]),
    )


@op
def logits(pairs: Pairs) -> Array:
    """Return the logit of every pair, (batch, G, R, queries, slots)."""
    first, *others = pairs.terms
    result = logits_of(first.query, first.key)
    if others:
        xp = namespace_of(result)
        distance = pairs.query_place[..., None] - pairs.key_place[:, :, None, None, :]
        for term in others:
            if pairs.causal and term.high is not None and term.high <= 0:
                continue  # only pairs that may not attend
            inside = distance == distance if term.low is None else distance >= term.low
            if term.high is not None:
                inside = inside & (distance < term.high)
            result = xp.where(inside, logits_of(term.query, term.key), result)
    if pairs.limit is not None:
        result = pairs.limit * namespace_of(result).tanh(result / pairs.limit)
    return result if pairs.bias is None else result + pairs.added


@op
def attend(pairs: Pairs, value: Array) -> Array:
    """Softmax attention over all that a query may attend to; zeros where that is nothing.

    Parameters
    ----------
    value
        (batch, G, slots, value_dim).

    Returns
    -------
    array
        (batch, G, R, queries, value_dim).
    """
    return mix(masked_softmax(logits(pairs), visible_pairs(pairs), pairs.sink), value)


@op
def sum_logits(pairs: Pairs, weight: Array | None = None) -> Array:
    """Sum the logits of each entry over the queries that may attend to it.

    Parameters
    ----------
    weight
        (batch, queries): multiplies the logits; None = 1.

    Returns
    -------
    array
        (batch, G, R, slots).
    """
    return pool_queries(logits(pairs), allowed_pairs(pairs), "sum", weight)
