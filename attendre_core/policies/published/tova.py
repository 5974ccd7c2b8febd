"""TOVA: the entry with the least weight from the last query is evicted first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array
from attendre_core.policies.base import New, Policy, Stored
from attendre_core.policies.published.parts import zero

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["TOVA"]


@dataclass(frozen=True)
class TOVA(Policy):
    """Keep the entries with the most softmax weight from the last query, averaged over heads.

    Token omission via attention, from "Transformers are Multi-State RNNs" (arXiv 2401.06104).
    There the last query is that of the newest token; here it is the last valid query of a chunk.
    Use it with ``present="visible"``, as the preset ``"TOVA"`` does, so that an entry has a weight
    before it competes.

    Notes
    -----
    The same scores as ``LRA("last", score="softmax", heads="mean")`` once an entry has
    been seen.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.TOVA(), present="visible").policy
    TOVA()
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: no query has attended to a new entry yet."""
        return zero(stored)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the weights of the last query."""
        last = attention.last()
        return last.pool("weights", heads="mean")
