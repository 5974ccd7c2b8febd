"""First in, first out, with attention weights added up for a compressor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import Policy, Stored
from attendre_core.policies.fifo import FIFO

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Usage"]


@dataclass(frozen=True)
class Usage(FIFO):
    """Evict the oldest entry first, and score entries by the attention they got, for `MostUsed`.

    The score is the sum of the softmax weights over queries and heads. Law: it keeps what `FIFO`
    keeps.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(512, at.Usage()).policy
    Usage()
    """

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Add the weights of this step's queries."""
        nothing = namespace_of(stored.score).zeros_like(stored.score)
        return stored.score + attention.pool("weights", unseen=nothing)

    priority = Policy.by_arrival
