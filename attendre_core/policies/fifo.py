"""FIFO: the oldest entry is evicted first (paper, section 3.1; Memorizing Transformer)."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored

__all__ = ["FIFO"]


@dataclass(frozen=True)
class FIFO(Policy):
    """First in, first out: a sliding window over the input.

    Laws: the same as `AttentionSink` with no sinks; independent of the chunk length.

    Examples
    --------
    >>> FIFO() == FIFO()
    True
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: the score is not used."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    priority = Policy.by_arrival
