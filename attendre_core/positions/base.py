"""The contract between attention over a memory and a position scheme.

Keys are stored without positions, and a scheme is applied when they are attended to (specification,
reading 30), so eviction never changes what a position means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core.backend import Array
from attendre_core.ops.bias import DistanceBias
from attendre_core.ops.pairs import Term

__all__ = ["Encoded", "Encoding", "Places", "Term"]


class Places(NamedTuple):
    """The positions of queries and keys, counted from the last valid query of each row.

    Only differences matter, and small numbers are exact: an angle is a position times a
    frequency, and at position 1,000,000 float32 would leave an error of 0.03 radians.

    Attributes
    ----------
    query
        int32, (batch, 1 or kv_heads, 1, queries).
    key
        int32, (batch, 1 or kv_heads, slots).
    query_valid
        Boolean, (batch, queries).
    key_valid
        Boolean, (batch, 1 or kv_heads, slots).
    """

    query: Array
    key: Array
    query_valid: Array
    key_valid: Array


class Encoded(NamedTuple):
    """Queries and keys with a scheme applied.

    Attributes
    ----------
    terms
        The products that make up the logits; see `attendre_core.ops.Term`.
    places
        The positions between which the distances that bound the terms are measured.
    bias
        Added to the logits: None, a `DistanceBias`, or an array that is broadcastable to (batch,
        kv_heads, group, queries, slots).
    near
        Boolean, broadcastable likewise: False for pairs that may not attend; None = all may.
    limit, sink
        As in `attendre_core.ops.Pairs`.
    """

    terms: tuple[Term, ...]
    places: Places
    bias: Array | DistanceBias | None = None
    near: Array | None = None
    limit: float | None = None
    sink: Array | None = None


@dataclass(frozen=True)
class Encoding:
    """Base of the position schemes; on its own it applies no positions.

    Laws a scheme must obey: the logit of a pair depends on that pair alone (for `InCache`, also
    on how many entries lie in between), never on the slot; it is the same in a memory and in full
    attention.
    """

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Apply the scheme.

        Parameters
        ----------
        query
            (batch, kv_heads, group, queries, head_dim), scaled, in float32 or float64.
        key
            (batch, kv_heads, slots, head_dim), as stored, in half precision too. A `Term` widens
            them before it rotates them.
        params
            Learned arrays of the scheme, if it has any.
        """
        return Encoded((Term(query, key),), places)
