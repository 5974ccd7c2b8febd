"""The contract between attention over a memory and a position scheme.

Keys are stored un-rotated with their original positions; a scheme is applied when they are
attended to, so eviction never changes what a position means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core.backend import Array, backend_of

__all__ = ["Encoded", "Encoding", "Pairing", "Piece", "Pieces"]


class Pairing(NamedTuple):
    """Where queries and keys stand.

    Attributes
    ----------
    query_position, query_valid
        (batch, queries); positions also (batch, kv_heads, queries), if they differ by head.
    key_position, key_valid
        (batch, slots), or (batch, kv_heads, slots) for eviction per head.
    key_sorted
        The keys stand in the order of their positions, empty slots last; positions may be read,
        or compiled code may branch by them (`attendre_core.ops.choose`).
    in_pieces
        The caller attends to `Pieces` too, and positions may be read now.
    """

    query_position: Array
    query_valid: Array
    key_position: Array
    key_valid: Array
    key_sorted: bool = False
    in_pieces: bool = False

    @property
    def query_place(self) -> Array:
        """Positions of the queries, (batch, 1 or kv_heads, 1, queries)."""
        at = self.query_position
        return at[:, None, None, :] if at.ndim == 2 else at[:, :, None, :]

    @property
    def key_place(self) -> Array:
        """Positions of the keys, (batch, 1 or kv_heads, slots)."""
        at = self.key_position
        return at[:, None, :] if at.ndim == 2 else at

    def centred(self) -> Pairing:
        """Count from the last real query of each row, for schemes to which differences matter.

        An angle is a position times a frequency in the precision of the keys: at position
        1,000,000 float32 leaves an error of 0.03 radians, near 0 it leaves none to speak of.
        """
        at, real = self.query_position, self.query_valid
        xp = backend_of(at).xp
        real = real if at.ndim == 2 else real[:, None, :]
        axes = tuple(range(1, at.ndim))
        last = xp.max(xp.where(real, at, xp.zeros_like(at)), axis=axes)

        def moved(position: Array) -> Array:
            return position - xp.reshape(last, (last.shape[0],) + (1,) * (position.ndim - 1))

        return self._replace(query_position=moved(at), key_position=moved(self.key_position))


class Piece(NamedTuple):
    """Slots of one row whose logits are one kind of product.

    Attributes
    ----------
    query
        (1, kv_heads, group, queries, head_dim).
    key
        (1, kv_heads, n, head_dim).
    slots
        Integer, (n,): which slots; None = all of them.
    real
        Boolean, (1, n): the others do not belong to the piece; None = all that hold an entry do.
    holds
        Boolean, (1, 1, 1, queries, n): the pairs whose logit this is; None = all of them.
    past
        Known now: no real query stands before a key of the piece.
    """

    query: Array
    key: Array
    slots: Array | None
    real: Array | None
    holds: Array | None
    past: bool = False


class Pieces(NamedTuple):
    """The pieces of each row, and a function that returns all logits, for who needs them.

    Every pair of a real query and a stored key is in exactly one piece.
    """

    rows: tuple[tuple[Piece, ...], ...]
    logits: Callable[[], Array]


class Encoded(NamedTuple):
    """What a scheme makes of queries and keys.

    Attributes
    ----------
    query
        (batch, kv_heads, group, queries, head_dim): to be multiplied with ``key``.
    key
        (batch, kv_heads, slots, head_dim).
    bias
        Added to the logits: None, or broadcastable to (batch, kv_heads, group, queries, slots).
    logits
        The logits themselves, for schemes that are no product of the two; else None.
    near
        Boolean, broadcastable likewise: the only pairs that may attend; None = all may.
    pieces
        In the stead of logits, for a caller who attends to pieces.
    """

    query: Array
    key: Array
    bias: Array | None = None
    logits: Array | None = None
    near: Array | None = None
    pieces: Pieces | None = None


@dataclass(frozen=True)
class Encoding:
    """Base of the position schemes; as it stands it knows no positions.

    Laws a scheme must obey: the logit of a pair depends on that pair alone (for `InCache` also
    on how many entries lie between), never on the slot; it is the same for a key in a memory
    and in full attention.
    """

    @property
    def wants_sorted(self) -> bool:
        """Whether it pays to hand the keys over sorted by position, where that can be used."""
        return False

    @property
    def has_pieces(self) -> bool:
        """Whether it may answer in `Pieces`, which is faster where attention is fused."""
        return False

    def encode(self, query: Array, key: Array, pairing: Pairing, params: Any = None) -> Encoded:
        """Apply the scheme.

        Parameters
        ----------
        query
            (batch, kv_heads, group, queries, head_dim), scaled.
        key
            (batch, kv_heads, slots, head_dim), as stored.
        params
            Learned arrays of the scheme, if it has any.
        """
        return Encoded(query, key)
