"""LM-Infinite in the paper's variant (section 4): the distance is clamped, nothing is masked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.attention import logits_of
from attendre_core.ops.branches import choose, when
from attendre_core.positions.base import Encoded, Encoding, Pairing, Piece, Pieces
from attendre_core.positions.rope import RoPE

__all__ = ["LMInfinite"]


@dataclass(frozen=True)
class LMInfinite(Encoding):
    """RoPE whose relative distance is clamped to [-n_local, n_local].

    Within the band the original positions count; every pair farther apart is treated as
    n_local apart, in either direction. Sinks follow the same rule.

    Parameters
    ----------
    n_local
        The context length of pretraining.
    base
        Of the rotation.
    rope
        The whole rotation, if more than its base differs (scaling, partial, interleaved).

    Notes
    -----
    A pair at or beyond n_local needs another product than a near one: the query turned by
    n_local against the key as stored. Where values may be read, or compiled code may branch,
    the keys come sorted by position and are taken in blocks, so that all but those at the edges
    of the band are multiplied once, and turned only if they are near. Elsewhere all pairs are
    multiplied for each side. A caller who attends to pieces gets near and far slots apart, in
    any order, so that each is attended to in one fused call.

    What a product holds never depends on other rows of the batch, only whether it is made: a
    product of another shape would be rounded in another way, and a tie in one row decided by
    its neighbours.

    Examples
    --------
    >>> LMInfinite(n_local=512)
    LMInfinite(n_local=512, base=10000.0, rope=None)
    """

    n_local: int = 512
    base: float = 10000.0
    rope: RoPE | None = None

    def __post_init__(self) -> None:
        if self.n_local < 0:
            raise ConfigError(
                f"LMInfinite: n_local is {self.n_local}, expected the context length of "
                "pretraining, such as 512."
            )

    @property
    def wants_sorted(self) -> bool:
        """Sorted keys are near or far in one piece."""
        return True

    @property
    def has_pieces(self) -> bool:
        """Near slots are one piece, far ones another."""
        return True

    def encode(self, query: Array, key: Array, pairing: Pairing, params: Any = None) -> Encoded:
        """Compute the logits of near pairs and of pairs beyond the band on either side."""
        rope = RoPE(base=self.base) if self.rope is None else self.rope
        if rope.temperature != 1.0:
            query = query * rope.temperature**2
        pairing = pairing.centred()
        needs = _needs(pairing, self.n_local)
        found = backend_of(needs)
        if pairing.in_pieces:
            return _in_pieces(rope, self.n_local, query, key, pairing, needs)
        products = _Products(rope, self.n_local, query, key, pairing)
        needs = found.xp.any(needs, axis=tuple(range(1, needs.ndim - 1)))
        if not pairing.key_sorted:
            logits = _by_side(products, found.xp.any(needs, axis=1))
        elif found.is_concrete(needs):
            logits = _by_read_blocks(products, found.to_numpy(needs))
        else:
            logits = _by_chosen_blocks(products, needs)
        return Encoded(query, key, logits=logits)


#: Farther away than any position can be, with room to add n_local.
_FAR = 2**30
#: Slots of a block: small against a memory for which time matters, large against a product.
_BLOCK = 128
#: Compiled code holds every branch of every block, so there the blocks are few.
_MOST_BLOCKS = 8
_SIDES = ("past", "near", "ahead")
#: Near slots are gathered only if that saves more than this share of all slots.
_SAVED = 1 / 8


def _needs(pairing: Pairing, n_local: int) -> Array:
    """Tell which slots are needed far past, near and far ahead.

    Returns
    -------
    array
        Boolean, (3, batch, slots) or (3, batch, kv_heads, slots).
    """
    xp = backend_of(pairing.key_position).xp
    where, real = pairing.query_position, pairing.query_valid
    if where.ndim == 3:
        real = real[:, None, :]
    lowest = xp.min(xp.where(real, where, xp.full_like(where, _FAR)), axis=-1)
    highest = xp.max(xp.where(real, where, xp.full_like(where, -_FAR)), axis=-1)
    at = pairing.key_position
    rows = (*lowest.shape, *(1,) * (at.ndim - lowest.ndim))
    lowest, highest = xp.reshape(lowest, rows), xp.reshape(highest, rows)
    past, ahead = at <= highest - n_local, at >= lowest + n_local
    near = (at > lowest - n_local) & (at < highest + n_local)
    # Slots that hold nothing need nothing, and neither does a row without queries.
    some = pairing.key_valid & (lowest <= highest)
    return xp.stack([past, near, ahead]) & some


def _in_pieces(
    rope: RoPE, n_local: int, query: Array, key: Array, pairing: Pairing, needs: Array
) -> Encoded:
    """Take the slots apart by side; those on several sides, at an edge of the band, once more."""
    found = backend_of(key)
    xp = found.xp
    place, at = pairing.query_place, pairing.key_place
    turned = rope.rotate(query, place)
    needed = found.to_numpy(needs)
    if not (needed[0].any() or needed[2].any()):
        return Encoded(turned, rope.rotate(key, at))
    limit = xp.full_like(at[:1, :, :1], n_local)

    def piece(row: int, side: str, which: Any, several: bool) -> Piece:
        here = slice(row, row + 1)
        keys, positions, slots, real, holds = key[here, ...], at[here, ...], None, None, None
        if several or 0 < which.sum() < (1 - _SAVED) * which.size:
            slots = found.from_numpy(which.nonzero()[0])
            keys, positions = (xp.take(x, slots, axis=2) for x in (keys, positions))
        else:
            real = found.from_numpy(which[None, :])
        # To turn few far keys back takes less time than to turn all queries.
        angle = {"past": -limit, "near": positions, "ahead": limit}[side]
        keys = rope.rotate(keys, angle)
        if several:
            distance = place[here, ..., None] - positions[:, :, None, None, :]
            past = distance >= n_local
            ahead = (distance <= -n_local) & ~past
            holds = {"past": past, "near": ~(past | ahead), "ahead": ahead}[side]
        rows = (turned if side == "near" else query)[here, ...]
        return Piece(rows, keys, slots, real, holds, past=side == "past" and not several)

    def row_of(row: int) -> tuple[Piece, ...]:
        past, near, ahead = mine = needed[:, row, :]
        several = (past & near) | (past & ahead) | (near & ahead)
        groups = [(flags & ~several, False) for flags in mine]
        if several.any():
            groups += [(flags & several, True) for flags in mine]
        pieces = [
            piece(row, _SIDES[i % 3], which, twice)
            for i, (which, twice) in enumerate(groups)
            if which.any()
        ]
        return tuple(pieces) or (piece(row, "near", near, False),)

    def logits() -> Array:
        products = _Products(rope, n_local, query, key, pairing)
        return _by_side(products, xp.any(needs, axis=(1, 2)))

    rows = tuple(row_of(row) for row in range(key.shape[0]))
    return Encoded(query, key, pieces=Pieces(rows, logits))


class _Products:
    """The three products that pairs may need, each for any part of the keys."""

    def __init__(
        self, rope: RoPE, n_local: int, query: Array, key: Array, pairing: Pairing
    ) -> None:
        self.xp = backend_of(query).xp
        self.slots = key.shape[2]
        self._rope = rope
        self._n_local = n_local
        self._key = key
        self._place, self._at = pairing.query_place, pairing.key_place
        limit = self.xp.full_like(self._place, n_local)
        angles = {"past": limit, "near": self._place, "ahead": -limit}
        self._query = {side: rope.rotate(query, angles[side]) for side in _SIDES}
        self._turned: tuple[int, Array] | None = None

    def turn(self, part: slice) -> None:
        """Turn a piece of the keys now, for all blocks in it."""
        keys = self._rope.rotate(self._key[:, :, part, :], self._at[:, :, part])
        self._turned = (part.start, keys)

    def of(self, side: str, part: slice) -> Array:
        """Multiply all pairs of one part as if they were on one side."""
        keys = self._key[:, :, part, :]
        if side == "near" and self._turned is not None:
            start, turned = self._turned
            keys = turned[:, :, part.start - start : part.stop - start, :]
        elif side == "near":
            keys = self._rope.rotate(keys, self._at[:, :, part])
        return logits_of(self._query[side], keys)

    def far(self, side: str, part: slice) -> Array:
        """Tell which pairs are far on one side, (batch, 1 or kv_heads, 1, queries, slots)."""
        distance = self._place[..., None] - self._at[:, :, None, None, part]
        return distance >= self._n_local if side == "past" else distance <= -self._n_local

    def merged(self, part: slice, past: bool, near: bool, ahead: bool) -> Array:
        """Multiply one part for each side that some of its pairs need."""
        if not (near or ahead):  # a part that holds nothing too: any numbers will do
            return self.of("past", part)
        logits = self.of("near", part) if near else None
        for side, needed in (("past", past), ("ahead", ahead)):
            if needed:
                clamped = self.of(side, part)
                if logits is not None:
                    clamped = self.xp.where(self.far(side, part), clamped, logits)
                logits = clamped
        return logits


def _parts(slots: int, width: int) -> list[slice]:
    return [slice(start, min(start + width, slots)) for start in range(0, slots, width)]


def _by_read_blocks(products: _Products, needed: Any) -> Array:
    """Multiply sorted keys block by block; ``needed`` is NumPy, (3, slots)."""
    blocks = [
        (part, *needed[:, part].any(axis=1).tolist()) for part in _parts(products.slots, _BLOCK)
    ]
    near = [part for part, _, is_near, _ in blocks if is_near]
    if near:
        products.turn(slice(near[0].start, near[-1].stop))
    parts = [products.merged(*block) for block in blocks]
    return parts[0] if len(parts) == 1 else products.xp.concat(parts, axis=-1)


def _by_chosen_blocks(products: _Products, needs: Array) -> Array:
    """Multiply sorted keys block by block, deciding when the program runs."""
    xp = products.xp
    width = max(_BLOCK, -(-products.slots // _MOST_BLOCKS))
    parts = []
    for part in _parts(products.slots, width):
        past, near, ahead = (xp.any(needs[i, part]) for i in range(3))
        several = (near & (past | ahead)) | (past & ahead)
        one = [near & ~several, ahead & ~several, several]
        which = sum(xp.astype(flag, xp.int32) * (i + 1) for i, flag in enumerate(one))
        branches = [partial(products.of, side, part) for side in _SIDES]
        parts.append(choose(which, [*branches, partial(products.merged, part, True, True, True)]))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)


def _by_side(products: _Products, needed: Array) -> Array:
    """Multiply all keys as near ones, and again for each side on which some pair is far."""
    whole = slice(0, products.slots)

    def clamped(side: str, near: Array) -> Array:
        return products.xp.where(products.far(side, whole), products.of(side, whole), near)

    def same(near: Array) -> Array:
        return near

    logits = products.of("near", whole)
    logits = when(needed[0], partial(clamped, "past", logits), partial(same, logits))
    return when(needed[2], partial(clamped, "ahead", logits), partial(same, logits))
