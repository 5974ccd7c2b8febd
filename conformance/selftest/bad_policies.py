"""Policies that break one law each, and one that breaks none."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import attendre_core as at
from attendre_core.backend import backend_of, namespace_of, numbers


@dataclass(frozen=True)
class Good(at.Policy):
    """Keep what had the largest weight of all; newer entries first among equals."""

    share: float = 0.5

    def enter(self, stored: Any, new: Any) -> Any:
        """Give every entry a score of its own: the length of its key."""
        xp = namespace_of(new.key)
        axes = (3,) if new.valid.ndim == 3 else (1, 3)
        length = xp.sum(new.key * new.key, axis=axes, dtype=stored.score.dtype)
        return xp.where(new.valid, self.share * length, xp.zeros_like(length))

    def observe(self, stored: Any, attention: Any) -> Any:
        """Keep the largest weight so far."""
        xp = namespace_of(stored.score)
        return xp.maximum(stored.score, attention.pool(attention.weights, queries="max"))


class Undecorated(at.Policy):
    """Has an attribute that no comparison knows."""

    def __init__(self) -> None:
        object.__setattr__(self, "factor", 2.0)


@dataclass(frozen=True)
class Unhashable(at.Policy):
    """Holds a list."""

    factors: list[float] = field(default_factory=lambda: [1.0, 2.0])


CALLS: list[int] = []


@dataclass(frozen=True)
class Counts(at.Policy):
    """Scores entries by how often it was asked."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return one more each time."""
        CALLS.append(1)
        return stored.score * 0.0 + float(len(CALLS))


@dataclass(frozen=True)
class Writes(at.Policy):
    """Writes into the scores it was shown."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the scores it was shown, changed."""
        score = stored.score
        score += 1.0
        return score


@dataclass(frozen=True)
class Remembers(at.Policy):
    """Keeps an array on itself."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the scores, and keep them."""
        object.__setattr__(self, "_last", stored.score)
        return stored.score


@dataclass(frozen=True)
class Reads(at.Policy):
    """Decides in Python."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the logits only if any of them is positive."""
        pooled = attention.sum_logits()
        return pooled if namespace_of(pooled).any(pooled > 0) else stored.score


@dataclass(frozen=True)
class MixesRows(at.Policy):
    """Compares with the best of the whole batch."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the distance from the best of all rows."""
        pooled = attention.sum_logits()
        return pooled - namespace_of(pooled).max(pooled)


@dataclass(frozen=True)
class LetsPaddingIn(at.Policy):
    """Sums logits of pairs that may not attend."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the sum over all queries, real or not."""
        xp = namespace_of(stored.score)
        axes = (2, 3) if attention.per_head else (1, 2, 3)
        return xp.sum(attention.logits, axis=axes, dtype=stored.score.dtype)


@dataclass(frozen=True)
class ReadsEmptySlots(at.Policy):
    """Lets new entries in with the mean of all slots, empty ones too."""

    def enter(self, stored: Any, new: Any) -> Any:
        """Return the mean of what is in the slots."""
        xp = namespace_of(stored.score)
        return xp.mean(stored.score, axis=-1)


@dataclass(frozen=True)
class CountsPadding(at.Policy):
    """Divides by all queries of the chunk."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return a mean over queries that counts padding."""
        return attention.sum_logits() / attention.valid.shape[-1]


@dataclass(frozen=True)
class PrefersSlots(at.Policy):
    """Adds the number of the slot."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return scores that depend on the slot."""
        xp = namespace_of(stored.score)
        slot = xp.astype(numbers(stored.score.shape[-1], stored.score), stored.score.dtype)
        return attention.sum_logits() + slot


@dataclass(frozen=True)
class WrongShape(at.Policy):
    """Forgets to pool over heads."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return one score per K/V head."""
        xp = namespace_of(stored.score)
        return xp.sum(attention.weights, axis=(2, 3), dtype=stored.score.dtype)[:, 0, :][:, None]


@dataclass(frozen=True)
class WholeNumbers(at.Policy):
    """Returns integers."""

    def enter(self, stored: Any, new: Any) -> Any:
        """Return the number of entries that arrive."""
        return new.count if stored.score.ndim == 2 else stored.arrival[..., 0] * 0


@dataclass(frozen=True)
class TakesLogarithms(at.Policy):
    """Returns -inf where a weight is 0."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the logarithm of the weights."""
        xp = namespace_of(stored.score)
        pooled = attention.pool(attention.weights)
        return xp.where(pooled > 0.9, -float("inf"), pooled)


@dataclass(frozen=True)
class Normalizes(at.Policy):
    """Divides by the range of the scores, which may be 0."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return scores from 0 to 1."""
        xp = namespace_of(stored.score)
        pooled = xp.where(attention.seen, attention.sum_logits(), xp.zeros_like(stored.score))
        low = xp.min(pooled, axis=-1, keepdims=True)
        spread = xp.max(pooled, axis=-1, keepdims=True) - low
        return xp.where(spread > 0, (pooled - low) / spread, spread / spread)


@dataclass(frozen=True)
class GrowingState(at.Policy):
    """Remembers one number more in every step."""

    def init(self, stored: Any) -> Any:
        """Return one number per row."""
        return (namespace_of(stored.score).zeros_like(stored.clock)[:, None],)

    def remember(self, stored: Any, attention: Any) -> Any:
        """Return one number more."""
        (past,) = stored.policy_state
        return (namespace_of(past).concat([past, attention.latest[:, None]], axis=1),)


@dataclass(frozen=True)
class CountsSteps(at.Policy):
    """Counts chunks, with or without a real query."""

    def init(self, stored: Any) -> Any:
        """Return no steps."""
        return (namespace_of(stored.score).zeros_like(stored.clock),)

    def remember(self, stored: Any, attention: Any) -> Any:
        """Return one step more."""
        return (stored.policy_state[0] + 1,)


@dataclass(frozen=True)
class LooksForACompiler(at.Policy):
    """Does something else where values cannot be read."""

    def observe(self, stored: Any, attention: Any) -> Any:
        """Return the logits, or their negatives in compiled code."""
        pooled = attention.sum_logits()
        return pooled if backend_of(pooled).is_concrete(pooled) else -pooled


def needs_arguments(factor: float) -> at.Policy:
    """Cannot be called by a test."""
    return Good(factor)


NO_POLICY = {"a": 1}
