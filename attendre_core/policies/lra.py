"""LRA: the entry that the latest queries attended to least is evicted first (section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from attendre_core.backend import Array
from attendre_core.errors import ConfigError
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, InitialScore, Scored
from attendre_core.policies.scores import ScoreTransform, check_score, transformed

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["LRA"]


@dataclass(frozen=True)
class LRA(Scored):
    """Least recently attended: the score is the attention of the latest chunk's queries.

    Parameters
    ----------
    pool
        How to pool over the queries of the step: only the ``"last"`` valid one, or the ``"max"``,
        ``"sum"`` or ``"mean"`` of all valid ones.
    initial
        Score of new entries. The paper uses 2 sigmas for last, 1.5 for max and sum on PaLM 2.
    score
        What is pooled: see `attendre_core.policies.scores`.
    heads
        How to pool over heads, after queries: ``"sum"``, ``"max"`` or ``"mean"``. None is max
        for ``pool="max"`` and sum otherwise.
    hold
        Entries at positions after every query so far keep their score. With a Q memory, the
        first queries that see a new entry come from before it; ``hold`` keeps them from scoring
        it. Not in the paper.
    window
        Score by the last so many valid queries of a step only, which costs that share of the
        time, as SnapKV does (Li et al., 2024); None = by all. Not in the paper.

    Notes
    -----
    Laws: replacing every logit by a * logit + b, a > 0, does not change what is evicted (with
    logits as scores); last, max and sum agree for chunks of length 1 and one head, and with
    ``window=1`` and one head; a window of a whole chunk is none.

    Examples
    --------
    >>> LRA(pool="max").heads is None
    True
    """

    pool: Literal["last", "max", "sum", "mean"] = "last"
    initial: AnyInitial = InitialScore()
    score: ScoreTransform = "logits"
    heads: Literal["sum", "max", "mean"] | None = None
    hold: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        if self.pool not in ("last", "max", "sum", "mean"):
            raise ConfigError(
                f"LRA: pool is {self.pool!r}, expected 'last', 'max', 'sum' or 'mean'."
            )
        if self.heads not in (None, "sum", "max", "mean"):
            raise ConfigError(f"LRA: heads is {self.heads!r}, expected 'sum', 'max' or 'mean'.")
        check_score("LRA", self.score, self.window)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the pooled attention of this step's queries."""
        view = attention.last(1 if self.pool == "last" else self.window)
        queries = "sum" if self.pool == "last" else self.pool
        heads = self.heads or ("max" if self.pool == "max" else "sum")
        return view.pool(transformed(self.score, view), queries=queries, heads=heads)
