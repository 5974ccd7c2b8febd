"""LFU: the entry that was used least often is evicted first (paper, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.ops.counting import count_true
from attendre_core.ops.sums import add_up
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, ConstantScore, InitialScore, Scored

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["LFU"]


@dataclass(frozen=True)
class LFU(Scored):
    """Least frequently used: the score counts the queries that retrieved the entry so far.

    A query counts once, no matter how many of its heads have the entry in their top K.

    Parameters
    ----------
    initial
        Score of new entries, from which counting starts.

    Notes
    -----
    Scores are float32 (float64 for float64 keys). In long streams counts are levelled: the lowest
    is taken off all of them, so that they never stop (specification, law-sums).

    Examples
    --------
    >>> LFU(initial=InitialScore(sigmas=0.0))
    LFU(initial=InitialScore(sigmas=0.0))
    """

    initial: AnyInitial = InitialScore()

    @property
    def drifts(self) -> bool:  # type: ignore[override]
        """Whether scores are sums of which only the differences matter."""
        return not isinstance(self.initial, ConstantScore)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add the number of queries of this step that used each entry."""
        xp = namespace_of(stored.score)
        times = count_true(attention.used_by_query(), axis=-2)
        count = xp.astype(times, stored.score.dtype)
        return add_up(stored.score, count, stored.clock, attention.latest)
