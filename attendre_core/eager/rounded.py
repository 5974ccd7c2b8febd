"""Queries and keys as kernels for half precision multiply them.

Scores are made of keys that are rotated in float32. For outputs, a kernel may round what was
rotated to the dtype of the memory, once, as models do (specification, "law-half-precision").
"""

from __future__ import annotations

from attendre_core.backend import Array, namespace_of
from attendre_core.ops.pairs import Term

__all__ = ["rounded_key", "rounded_query"]


def rounded_query(term: Term, scale: float) -> Array:
    """Return the rotated queries, divided by their scale, in the dtype of the stored keys.

    Queries that are not rotated are then exactly those that were given.
    """
    query = term.query
    return namespace_of(query).astype(query / scale, term.plain_key.dtype)


def rounded_key(term: Term) -> Array:
    """Return the rotated keys in the dtype in which they are stored."""
    if term.rotate is None or term.key_at is None:
        return term.plain_key
    key = term.key
    return namespace_of(key).astype(key, term.plain_key.dtype, copy=False)
