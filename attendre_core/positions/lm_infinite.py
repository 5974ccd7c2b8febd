"""LM-Infinite in the paper's variant (section 4): the distance is clamped, nothing is masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.attention import logits_of
from attendre_core.ops.branches import when
from attendre_core.positions.base import Encoded, Encoding, Pairing
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
    n_local against the key as stored. Eager code gets the keys sorted by position and goes
    through them in blocks, so that all but the few at the edges of the band are multiplied
    once, and turned only if they are near. Compiled code skips the side on which no pair is
    far, if the library can branch.

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

    def encode(self, query: Array, key: Array, pairing: Pairing, params: Any = None) -> Encoded:
        """Compute the logits of near pairs and of pairs beyond the band on either side."""
        xp = backend_of(query).xp
        rope = RoPE(base=self.base) if self.rope is None else self.rope
        if rope.temperature != 1.0:
            query = query * rope.temperature**2
        pairing = pairing.centred()
        place, at = pairing.query_place, pairing.key_place
        limit = xp.full_like(place, self.n_local)

        def turned(side: str) -> Array:
            if side == "near":
                return rope.rotate(query, place)
            return rope.rotate(query, limit if side == "past" else -limit)

        def keys(side: str, part: slice) -> Array:
            own = key[:, :, part, :]
            return rope.rotate(own, at[:, :, part]) if side == "near" else own

        def far(side: str, part: slice) -> Array:
            distance = place[..., None] - at[:, :, None, None, part]
            return distance >= self.n_local if side == "past" else distance <= -self.n_local

        if pairing.key_sorted:
            logits = _in_blocks(xp, self._blocks(pairing), turned, keys, far)
        else:
            everything = slice(None)
            logits = logits_of(turned("near"), keys("near", everything))
            for side in ("past", "ahead"):
                logits = _where_needed(xp, side, turned, key, far, logits)
        return Encoded(query, key, logits=logits)

    def _blocks(self, pairing: Pairing) -> list[_Block]:
        """Cut sorted keys into blocks and tell what each of them needs for any row."""
        found = backend_of(pairing.key_position)
        xp = found.xp
        where, real = pairing.query_position, pairing.query_valid
        lowest = xp.min(xp.where(real, where, xp.full_like(where, _FAR)), axis=1)
        highest = xp.max(xp.where(real, where, xp.full_like(where, -_FAR)), axis=1)
        at, n = pairing.key_position, self.n_local
        rows = (at.shape[0],) + (1,) * (at.ndim - 1)
        lowest, highest = xp.reshape(lowest, rows), xp.reshape(highest, rows)
        past, ahead = at <= highest - n, at >= lowest + n
        near = (at > lowest - n) & (at < highest + n)
        # Slots that hold nothing need nothing, and neither does a row without queries.
        some = pairing.key_valid & (lowest <= highest)
        needs = xp.any(xp.stack([past, near, ahead]) & some, axis=tuple(range(1, at.ndim)))
        needed = found.to_numpy(needs)
        blocks = []
        for start in range(0, at.shape[-1], _BLOCK):
            part = slice(start, min(start + _BLOCK, at.shape[-1]))
            sides = needed[:, part].any(axis=1).tolist()
            blocks.append(_Block(part, *sides))
        return blocks


#: Farther away than any position can be, with room to add n_local.
_FAR = 2**30
#: Slots of a block: small against a memory for which time matters, large against a product.
_BLOCK = 128


class _Block(NamedTuple):
    """A piece of the sorted keys, and which of the three products some pair in it needs."""

    part: slice
    past: bool
    near: bool
    ahead: bool


def _where_needed(
    xp: Any,
    side: str,
    turned: Callable[[str], Array],
    key: Array,
    far: Callable[[str, slice], Array],
    near: Array,
) -> Array:
    """Replace the logits of pairs that are far on one side, if there are any."""
    flags = far(side, slice(None))
    return when(
        xp.any(flags), lambda: xp.where(flags, logits_of(turned(side), key), near), lambda: near
    )


def _in_blocks(
    xp: Any,
    blocks: list[_Block],
    turned: Callable[[str], Array],
    keys: Callable[[str, slice], Array],
    far: Callable[[str, slice], Array],
) -> Array:
    """Multiply sorted keys block by block."""
    first = next((block.part.start for block in blocks if block.near), 0)
    last = next((block.part.stop for block in reversed(blocks) if block.near), 0)
    near_keys = keys("near", slice(first, last))
    query = {side: turned(side) for side in ("past", "near", "ahead")}
    parts = []
    for block in blocks:
        logits = None
        if block.near:
            own = slice(block.part.start - first, block.part.stop - first)
            logits = logits_of(query["near"], near_keys[:, :, own, :])
        for side, needed in (("past", block.past), ("ahead", block.ahead)):
            if needed:
                clamped = logits_of(query[side], keys(side, block.part))
                if logits is not None:
                    clamped = xp.where(far(side, block.part), clamped, logits)
                logits = clamped
        if logits is None:  # an empty block: any numbers will do
            logits = logits_of(query["past"], keys("past", block.part))
        parts.append(logits)
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)
