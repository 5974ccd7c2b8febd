"""LM-Infinite in the paper's variant (section 4): the distance is clamped, nothing is masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.attention import logits_of
from attendre_core.ops.branches import when
from attendre_core.ops.counting import count_true
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
    A far pair needs another product than a near one: the query turned by n_local against the
    key as stored. Eager code gets the keys sorted by position, so that each of them is
    multiplied once, and turned only if it is near; the few at the edges of the band are
    multiplied twice. Compiled code skips the side on which no pair is far, if the library can
    branch.

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
        query = query * rope.temperature**2
        place, at = pairing.query_place, pairing.key_place
        limit = xp.full_like(place, self.n_local)

        def product(side: str, part: slice) -> Array:
            keys = key[:, :, part, :]
            if side == "near":
                return logits_of(rope.rotate(query, place), rope.rotate(keys, at[:, :, part]))
            return logits_of(rope.rotate(query, limit if side == "past" else -limit), keys)

        def far(side: str, part: slice) -> Array:
            distance = place[..., None] - at[:, :, None, None, part]
            return distance >= self.n_local if side == "past" else distance <= -self.n_local

        if pairing.key_sorted:
            edges = self._edges(pairing)
            return Encoded(query, key, logits=_in_pieces(xp, product, far, edges, key.shape[2]))
        everything = slice(None)
        logits = product("near", everything)
        for side in ("past", "ahead"):
            logits = _where_needed(xp, side, product, far, logits)
        return Encoded(query, key, logits=logits)

    def _edges(self, pairing: Pairing) -> tuple[int, int, int, int]:
        """Find where sorted keys stop being far for all, for some; and where that begins again.

        Slots below the first edge are far in the past of every query of every row, those from
        the second to the third are near to all, those from the fourth on far ahead of all.
        """
        xp = backend_of(pairing.key_position).xp
        where, real = pairing.query_position[:, :, None], pairing.query_valid[:, :, None]
        lowest = xp.min(xp.where(real, where, xp.full_like(where, _FAR)), axis=(1, 2))
        highest = xp.max(xp.where(real, where, xp.full_like(where, -_FAR)), axis=(1, 2))
        lowest = xp.minimum(lowest, highest)  # a row without queries: anything will do
        at, stored = pairing.key_position, pairing.key_valid
        rows = (at.shape[0],) + (1,) * (at.ndim - 1)
        lowest, highest = xp.reshape(lowest, rows), xp.reshape(highest, rows)

        def number(flags: Array) -> Array:
            return count_true(flags & stored, axis=-1)

        n = self.n_local
        edges = (
            xp.min(number(at <= lowest - n)),
            xp.max(number(at <= highest - n)),
            xp.min(number(at < lowest + n)),
            xp.max(number(at < highest + n)),
        )
        return tuple(int(edge) for edge in edges)  # type: ignore[return-value]


#: Farther away than any position can be, with room to add n_local.
_FAR = 2**30


def _where_needed(
    xp: Any,
    side: str,
    product: Callable[[str, slice], Array],
    far: Callable[[str, slice], Array],
    near: Array,
) -> Array:
    """Replace the logits of pairs that are far on one side, if there are any."""
    flags = far(side, slice(None))
    return when(
        xp.any(flags), lambda: xp.where(flags, product(side, slice(None)), near), lambda: near
    )


def _in_pieces(
    xp: Any,
    product: Callable[[str, slice], Array],
    far: Callable[[str, slice], Array],
    edges: tuple[int, int, int, int],
    slots: int,
) -> Array:
    """Multiply sorted keys piece by piece: far past, edge, near, edge, far ahead."""
    first, second, third, fourth = edges
    if second > third:
        # The band is narrower than the chunk: one edge that may be far on either side.
        second = third = max(second, fourth)
    pieces = [
        (slice(0, first), ("past",)),
        (slice(first, second), ("near", "past", "ahead")),
        (slice(second, third), ("near",)),
        (slice(third, max(third, fourth)), ("near", "past", "ahead")),
        (slice(max(third, fourth), slots), ("ahead",)),
    ]
    parts = []
    for part, sides in pieces:
        if part.start >= part.stop:
            continue
        logits = product(sides[0], part)
        for side in sides[1:]:
            flags = far(side, part)
            if bool(xp.any(flags)):
                logits = xp.where(flags, product(side, part), logits)
        parts.append(logits)
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=-1)
