"""H2O: the entry with the least softmax weight over all steps is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import zero

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["H2O"]


@dataclass(frozen=True)
class H2O(Policy):
    """Heavy hitters: keep the entries with the most softmax weight, summed over all queries.

    The rule of "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
    Models" (arXiv 2306.14048). The policy only ranks the older entries. The recent half of the
    budget and the decision per head are options of the memory, ``protect_recent`` and
    ``per_head``, and ``present="visible"`` lets an entry be attended to before it competes. The
    preset ``"H2O"`` sets all of them.

    Notes
    -----
    The same scores as ``LFA(decay=0, score="softmax", initial=ConstantScore(0))``. The sum only
    grows, so old entries have an advantage over new ones, as in the original.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.H2O(), per_head=True, protect_recent=32).policy
    H2O()
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: no query has attended to a new entry yet."""
        return zero(stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add the weights of this step's queries."""
        nothing = namespace_of(stored.score).zeros_like(stored.score)
        return stored.score + attention.pool("weights", queries="sum", unseen=nothing)
