"""LRU: the entry that was used longest ago is evicted first (paper, section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, InitialScore, Scored

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["LRU"]


@dataclass(frozen=True)
class LRU(Scored):
    """Least recently used: the score is the position of the last query that retrieved it.

    A query uses an entry if it has it in its top K on any head; without a top K, it uses every
    entry that it may attend to.

    Parameters
    ----------
    initial
        Score of new entries.

    Notes
    -----
    Scores are float32, which represents integers exactly up to 16,777,216. Beyond that, positions
    less than 2 apart may get the same score (less than 4 apart beyond twice that, and so on), and
    of equals the older entry is evicted. A memory of float64 keys has float64 scores, which
    distinguish all positions. `InitialScore` treats scores within float32 rounding as equal in
    either case; `QuantileScore` and `QuotaScore` do not.

    Examples
    --------
    >>> LRU().initial
    InitialScore(sigmas=1.0)
    """

    initial: AnyInitial = InitialScore()

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the position of the last query that used each entry; others keep their score."""
        xp = namespace_of(stored.score)
        used = attention.used_by_query()
        position = xp.astype(attention.position, stored.score.dtype)
        position = attention.along_queries(position)
        latest = xp.max(xp.where(used, position, -float("inf")), axis=-2)
        return xp.where(xp.any(used, axis=-2), latest, stored.score)
