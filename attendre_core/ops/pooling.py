"""What is known of all pairs of a step, and what all queries together say about each slot."""

from __future__ import annotations

from attendre_core.backend import Array, backend_of, op
from attendre_core.ops.dense import masked_softmax, pool_queries
from attendre_core.ops.pairs import Pairs, allowed_pairs, logits

__all__ = ["known", "pool_pairs"]


def known(pairs: Pairs, name: str) -> Array:
    """Return what is known of every pair, (batch, G, R, queries, slots), computed once in a step.

    Parameters
    ----------
    name
        ``"logits"``, ``"weights"``: the softmax over all that a query may attend to, or
        ``"allowed"``: which pairs count, broadcastable to the others.
    """
    memo = {} if pairs.memo is None else pairs.memo
    if name not in memo:
        memo[name] = _MAKE[name](pairs)
    return memo[name]


def _weights(pairs: Pairs) -> Array:
    return masked_softmax(known(pairs, "logits"), known(pairs, "allowed"), pairs.sink)


_MAKE = {"logits": logits, "weights": _weights, "allowed": allowed_pairs}


@op
def pool_pairs(
    pairs: Pairs,
    what: str,
    queries: str = "sum",
    weight: Array | None = None,
    value: Array | None = None,
) -> Array:
    """Pool the logits or the weights of each entry over the queries that may attend to it.

    No gradient flows through the result. A kernel may compute it without the matrix of all pairs.

    Parameters
    ----------
    what
        ``"logits"``, or ``"weights"``: the softmax over all that a query may attend to.
    queries
        ``"sum"``, ``"max"`` or ``"mean"``.
    weight
        (batch, queries): multiplies the amounts; None = 1.
    value
        What the queries of this step will attend to, if they will: a kernel may do both at once
        and leave the output for `attend`.

    Returns
    -------
    array
        (batch, G, R, slots); 0 for entries that no query may attend to.
    """
    amounts = known(pairs, what)
    amounts = backend_of(amounts).stop_gradient(amounts)
    return pool_queries(amounts, known(pairs, "allowed"), queries, weight)
