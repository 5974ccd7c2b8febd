"""LFA: the entry with the least decayed attention over all steps is evicted first (section 3.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.ops.sums import add_up
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, ConstantScore, InitialScore, Scored
from attendre_core.policies.scores import ScoreTransform, check_score, transformed

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["LFA"]


@dataclass(frozen=True)
class LFA(Scored):
    """Least frequently attended: attention summed over all steps, with exponential decay.

    In each step A <- A * exp(decay * (i'max - imax)) + sum of s * exp(decay * (i - imax)), where
    i is a query's position, imax the latest position so far and i'max the one before this step.

    Parameters
    ----------
    decay
        The paper's lambda: 0 never forgets, 1e-3 forgets over about a thousand positions.
    initial
        Score of new entries: the sum starts from it, and it decays with the sum.
    score
        What is summed: see `attendre_core.policies.scores`. On real models sums of logits are
        mostly negative, and decay raises a negative sum, so old entries rise.
    heads
        How to pool over heads, after the sum over queries.
    hold
        Entries later than every query so far keep their score (see `LRA`).
    start
        ``"sum"``: the sum starts from the initial score. ``"replace"``: the first observation
        replaces it.
    window
        Add the attention of the last so many valid queries of a step only (see `LRA`).

    Notes
    -----
    Laws: without a window, independent of the chunk length while nothing is evicted and new
    entries start at 0; scaling all logits by a > 0 does not change what is evicted. Sums never
    freeze, however long the stream (specification, law-sums).

    Examples
    --------
    >>> LFA(decay=0.0).decay
    0.0
    """

    decay: float = 1e-3
    initial: AnyInitial = InitialScore()
    score: ScoreTransform = "logits"
    heads: Literal["sum", "max", "mean"] = "sum"
    hold: bool = False
    start: Literal["sum", "replace"] = "sum"
    window: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.decay) and self.decay >= 0):
            raise ConfigError(
                f"LFA: decay is {self.decay}, expected 0 (no decay) or a small positive number "
                "such as 1e-3."
            )
        if self.heads not in ("sum", "max", "mean"):
            raise ConfigError(f"LFA: heads is {self.heads!r}, expected 'sum', 'max' or 'mean'.")
        if self.start not in ("sum", "replace"):
            raise ConfigError(f"LFA: start is {self.start!r}, expected 'sum' or 'replace'.")
        check_score("LFA", self.score, self.window)

    @property
    def drifts(self) -> bool:  # type: ignore[override]
        """Whether scores are sums of which only the differences matter."""
        absolute = isinstance(self.initial, ConstantScore) or self.start == "replace"
        return self.decay == 0 and not absolute

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Decay the sums so far and add the decayed attention of this step's queries."""
        xp = namespace_of(stored.score)
        past = stored.score
        if self.start == "replace":
            past = xp.where(stored.observed, past, xp.zeros_like(past))
        view, weight = attention.last(self.window), None
        if self.decay != 0:
            now = attention.latest[:, None]
            asked = xp.where(view.valid, view.position, now)
            age = xp.concat([attention.latest_before[:, None], asked], axis=1) - now
            left = xp.exp(self.decay * xp.astype(age, stored.score.dtype))
            past = past * attention.along_slots(left[:, 0])
            weight = left[:, 1:]
        nothing = xp.zeros_like(past)
        if self.score == "logits":
            gain = view.sum_logits(weight, heads=self.heads, unseen=nothing)
        else:
            amounts = transformed(self.score, view)
            gain = view.pool(amounts, heads=self.heads, weight=weight, unseen=nothing)
        # A sum that decays is bounded: it cannot freeze.
        return past + gain if self.decay else add_up(past, gain, stored.clock, attention.latest)
