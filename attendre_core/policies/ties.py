"""Which of two equal entries is evicted first (specification, reading 15)."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of

__all__ = ["RandomTies"]


@dataclass(frozen=True)
class RandomTies:
    """Break ties in an order that looks random but is fixed by a seed.

    The order depends only on the seed and on each entry's arrival number, so it is the same on
    every backend and in every batch row, and padding does not change it. It repeats after 2**30
    entries of a row.

    Examples
    --------
    >>> RandomTies(seed=7)
    RandomTies(seed=7)
    """

    seed: int = 0

    def order(self, arrival: Array) -> Array:
        """Permute arrival numbers; negative ones (empty slots) stay as they are."""
        xp = namespace_of(arrival)
        known = xp.where(arrival < 0, xp.zeros_like(arrival), arrival)
        left = xp.bitwise_and(xp.bitwise_right_shift(known, 15), 0x7FFF)
        right = xp.bitwise_and(known, 0x7FFF)
        state = (self.seed * 7919 + 12345) % 32749
        # A Feistel network on two halves of 15 bits: a permutation, and no product overflows int32.
        for _ in range(6):
            state = (state * 16381 + 1013) % 32749
            noise = (right * (state | 1) + state) % 32749
            left, right = right, xp.bitwise_xor(left, xp.bitwise_and(noise, 0x7FFF))
        mixed = xp.bitwise_or(xp.bitwise_left_shift(left, 15), right)
        return xp.where(arrival < 0, arrival, mixed)
