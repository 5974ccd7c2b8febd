"""R-KV: the entry that is least attended to and most like the others is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.keys import beside, by_head, mean_unit, newcomers, units
from attendre_core.policies.published.parts import around, check_window, decided

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["RKV"]


@dataclass(frozen=True)
class RKV(Policy):
    """Keep entries with a large share * importance - (1 - share) * redundancy.

    The rule of "R-KV: Redundancy-aware KV Cache Compression for Reasoning Models" (arXiv
    2505.24133). The importance of an entry is its mean softmax weight from the last queries, the
    largest among its neighbours; its redundancy is the mean cosine of its key to all others, in a
    softmax over all entries. Both add up to about 1 over the entries of a head.

    Parameters
    ----------
    window
        How many of the last valid queries of a step count; None = all of them.
    kernel
        Neighbours among which the largest weight counts, the entry itself included; odd.
    share
        How much the importance counts.

    Notes
    -----
    Laws: with ``share=0`` the order of a head is that of the cosines to the sum of the others, and
    a positive factor for each key changes nothing. Neighbours are those of `SnapKV`. Redundancy is
    over what is stored, and a new entry has the mean importance until queries have attended to it.
    The original lets each key overlook its latest close relative, so that the newest of a group of
    similar keys stays; that is left out. It compares keys after rotation by their positions, and
    takes the largest logit, not weight, of query heads that share keys.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.RKV(), per_head=True, protect_recent=8).policy
    RKV(window=8, kernel=7, share=0.1)
    """

    compares_keys = True

    window: int | None = 8
    kernel: int = 7
    share: float = 0.1

    def __post_init__(self) -> None:
        check_window("RKV", self.window)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ConfigError(f"RKV: kernel is {self.kernel}, expected an odd number, such as 7.")
        if not 0.0 <= self.share <= 1.0:
            raise ConfigError(f"RKV: share is {self.share}, expected a number from 0 to 1.")

    def enter(self, stored: Stored, new: New) -> Array:
        """Score new keys among all keys, with the mean importance."""
        key, _, valid = beside(stored, new)
        redundancy, mean = _redundancy(key, valid)
        score = self.share * mean - (1.0 - self.share) * redundancy
        return newcomers(decided(score, stored), stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Score the stored entries again."""
        view = attention if self.window is None else attention.last(self.window)
        xp, nothing = (
            namespace_of(stored.score),
            namespace_of(stored.score).zeros_like(stored.score),
        )
        weights = view.pool("weights", queries="mean", heads="max", unseen=nothing)
        importance = around(weights, stored, self.kernel // 2, "max")
        redundancy = decided(_redundancy(attention.key, stored.valid)[0], stored)
        score = self.share * importance - (1.0 - self.share) * redundancy
        return xp.where(view.seen, score, stored.score)


def _redundancy(key: Array, valid: Array) -> tuple[Array, Array]:
    """Return a softmax of mean cosines to the other keys, (batch, kv_heads, n), and its mean."""
    unit = units(key, valid)
    xp, (mean, count) = namespace_of(unit), mean_unit(unit, valid)
    each = 1.0 / xp.maximum(count, xp.ones_like(count))
    others = xp.sum(unit * (mean - each[..., None] * unit), axis=-1, dtype=unit.dtype)
    return ops.masked_softmax(others, by_head(valid)), each
