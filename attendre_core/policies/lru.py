"""LRU: the entry whose last use is longest ago goes first (paper, section 3.1)."""

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

    An entry is used by a query when it is in that query's top K on any head; with no top K,
    every entry that a query may attend to is used.

    Parameters
    ----------
    initial
        Score of new entries.

    Notes
    -----
    Scores are float32, which holds whole numbers up to 16,777,216: beyond that, uses less than 2
    positions apart may count as equal (less than 4 apart beyond twice as many, and so on), and
    of equals the older entry goes. A memory of float64 keys has float64 scores and tells all
    positions apart. `InitialScore` counts scores within rounding of float32 as equal in either;
    `QuantileScore` and `QuotaScore` do not.

    Examples
    --------
    >>> LRU().initial
    InitialScore(sigmas=1.0)
    """

    initial: AnyInitial = InitialScore()

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the position of the last query that used each entry, or the score it has."""
        xp = namespace_of(stored.score)
        used = attention.used_by_query()
        position = xp.astype(attention.position, stored.score.dtype)
        position = attention.along_queries(position)
        latest = xp.max(xp.where(used, position, -float("inf")), axis=-2)
        return xp.where(xp.any(used, axis=-2), latest, stored.score)
