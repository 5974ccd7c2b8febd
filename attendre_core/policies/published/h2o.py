"""H2O: the entry with the least softmax weight over all steps is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.ops.sums import add_up
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import norms, real, zero

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

    Parameters
    ----------
    value_norm
        Multiply the weight that an entry got from a head by the norm of its value there: an entry
        with a short value adds little to the output, whatever its weight. So do "Attention Score
        is not All You Need for Token Importance Indicator in KV Cache Reduction" (arXiv
        2406.12335), with the L1 norm, and the preset ``"H2O-vlen"``.

    Notes
    -----
    The same scores as ``LFA(decay=0, score="softmax", initial=ConstantScore(0))``. The sum only
    grows, so old entries have an advantage over new ones, as in the original.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.H2O(), per_head=True, protect_recent=32).policy
    H2O(value_norm=False)
    """

    value_norm: bool = False

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: no query has attended to a new entry yet."""
        return zero(stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add the weights of this step's queries."""
        nothing = namespace_of(stored.score).zeros_like(stored.score)
        times = norms(real(attention.value, stored.valid)) if self.value_norm else None
        gain = attention.pool("weights", times=times, unseen=nothing)
        return add_up(stored.score, gain, stored.clock, attention.latest)
