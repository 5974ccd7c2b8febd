"""Dense attention in the layout of a memory: (batch, kv_heads, group, queries, ...)."""

from __future__ import annotations

from attendre_core.backend import Array, backend_of, namespace_of, op, wide
from attendre_core.ops.counting import count_true
from attendre_core.ops.selection import among_top_k, approximate_threshold, top_k_threshold
from attendre_core.ops.slots import fill

__all__ = ["attend_top_k", "attention", "logits_of", "masked_softmax", "mix", "pool_queries"]

_LAST = 2**31 - 1


def logits_of(query: Array, key: Array) -> Array:
    """Multiply every query with every key of its K/V head; half precision in float32.

    Parameters
    ----------
    query
        (batch, kv_heads, group, queries, head_dim), already scaled.
    key
        (batch, kv_heads, slots, head_dim).

    Returns
    -------
    array
        (batch, kv_heads, group, queries, slots).
    """
    xp = namespace_of(query, key)
    batch, heads, group, count, dim = query.shape
    rows = xp.reshape(wide(query), (batch, heads, group * count, dim))
    flat = xp.matmul(rows, xp.matrix_transpose(wide(key)))
    return xp.reshape(flat, (batch, heads, group, count, key.shape[2]))


def mix(weights: Array, value: Array) -> Array:
    """Sum the values by their weights; values of half precision in float32.

    Parameters
    ----------
    weights
        (batch, kv_heads, group, queries, slots).
    value
        (batch, kv_heads, slots, value_dim).

    Returns
    -------
    array
        (batch, kv_heads, group, queries, value_dim).
    """
    xp = namespace_of(weights, value)
    batch, heads, group, count, slots = weights.shape
    flat = xp.matmul(xp.reshape(weights, (batch, heads, group * count, slots)), wide(value))
    return xp.reshape(flat, (batch, heads, group, count, value.shape[3]))


def pool_queries(
    amounts: Array, allowed: Array, queries: str = "sum", weight: Array | None = None
) -> Array:
    """Pool amounts over the queries that may attend to an entry; 0 where none may.

    Parameters
    ----------
    amounts, allowed
        (batch, kv_heads, group, queries, slots), and booleans broadcastable to it.
    queries
        ``"sum"``, ``"max"`` or ``"mean"``.
    weight
        (batch, queries): multiplies the amounts; None = 1.

    Returns
    -------
    array
        (batch, kv_heads, group, slots).
    """
    xp = namespace_of(amounts)
    if weight is not None:
        amounts = amounts * weight[:, None, None, :, None]
    if queries == "max":
        pooled = xp.max(xp.where(allowed, amounts, -float("inf")), axis=3)
        return xp.where(pooled == -float("inf"), xp.zeros_like(pooled), pooled)
    kept = xp.where(allowed, amounts, xp.zeros_like(amounts))
    pooled = xp.sum(kept, axis=3, dtype=kept.dtype)
    if queries == "mean":
        count = count_true(allowed, axis=3)
        count = xp.maximum(count, xp.ones_like(count))
        pooled = pooled / xp.astype(count, pooled.dtype)
    return pooled


@op
def masked_softmax(logits: Array, allowed: Array | None, sink: Array | None = None) -> Array:
    """Softmax over the allowed entries of the last axis.

    Parameters
    ----------
    logits
        Real floating, any shape. Entries that are not allowed have no effect, even if NaN.
    allowed
        Boolean, broadcastable to ``logits``; None = everything.
    sink
        One more logit for each row, (..., 1), whose weight is dropped; None = none.

    Returns
    -------
    array
        Weights of the same shape; a row with nothing allowed is all zeros, never NaN.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[0.0, 0.0, 9.0], [1.0, 2.0, 3.0]])
    >>> masked_softmax(x, np.asarray([[True, True, False], [False] * 3])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    xp = namespace_of(logits, allowed)
    masked = logits if allowed is None else xp.where(allowed, logits, -float("inf"))
    top = xp.max(masked, axis=-1, keepdims=True)
    top = xp.where(top == -float("inf"), xp.zeros_like(top), top)
    top = top if sink is None else xp.maximum(top, sink)
    raised = xp.exp(masked - top)
    total = xp.sum(raised, axis=-1, keepdims=True, dtype=raised.dtype)
    total = total if sink is None else total + xp.exp(sink - top)
    return raised / xp.where(total > 0, total, xp.ones_like(total))


@op
def attention(query: Array, key: Array, value: Array, allowed: Array | None = None) -> Array:
    """Softmax attention over all allowed entries; zeros where nothing is allowed.

    Parameters
    ----------
    query
        (batch, kv_heads, group, queries, head_dim), already scaled.
    key, value
        (batch, kv_heads, slots, dim).
    allowed
        Boolean, broadcastable to (batch, kv_heads, group, queries, slots); None = everything.

    Returns
    -------
    array
        (batch, kv_heads, group, queries, value_dim).

    Examples
    --------
    >>> import numpy as np
    >>> q, k = np.zeros((1, 1, 1, 1, 2)), np.zeros((1, 1, 2, 2))
    >>> v = np.asarray([[[[1.0], [3.0]]]])
    >>> attention(q, k, v, np.ones((1, 1, 1, 1, 2), dtype=bool)).tolist()
    [[[[[2.0]]]]]
    """
    return mix(masked_softmax(logits_of(query, key), allowed), value)


@op
def attend_top_k(
    logits: Array,
    value: Array,
    allowed: Array,
    k: int,
    order: Array,
    passes: int | None = None,
) -> tuple[Array, Array, Array]:
    """Softmax attention over the k largest allowed logits of each query; zeros if none is.

    Parameters
    ----------
    logits
        (batch, kv_heads, group, queries, slots).
    value
        (batch, kv_heads, slots, value_dim).
    allowed
        Boolean, broadcastable to ``logits``.
    k
        How many; fewer than there are slots.
    order
        int32, broadcastable to ``logits``, distinct within a row: of equal logits the one with
        the higher order is chosen.
    passes
        None for exactly k, else as in `approximate_top_k`.

    Returns
    -------
    output
        (batch, kv_heads, group, queries, value_dim).
    threshold, oldest
        (batch, kv_heads, group, queries, 1): what was attended to; see `top_k_threshold`.

    Examples
    --------
    >>> import numpy as np
    >>> x, v = np.asarray([[[[[1.0, 2.0, 2.0]]]]]), np.asarray([[[[1.0], [3.0], [5.0]]]])
    >>> yes, order = np.ones((1, 1, 1, 1, 3), dtype=bool), np.asarray([2, 1, 0], dtype=np.int32)
    >>> [number.item() for number in attend_top_k(x, v, yes, 1, order)]
    [3.0, 2.0, 1]
    """
    xp = namespace_of(logits, value, allowed, order)
    ranked = backend_of(logits).stop_gradient(logits)
    masked = fill(ranked, ~allowed, -float("inf"))
    if passes is None:
        threshold, oldest = top_k_threshold(masked, k, order)
        used = among_top_k(masked, threshold, oldest, order) & allowed
    else:
        threshold = approximate_threshold(ranked, allowed, k, passes)
        oldest = xp.full_like(threshold, -_LAST, dtype=xp.int32)
        used = (masked >= threshold) & allowed
    return mix(masked_softmax(logits, used), value), threshold, oldest
