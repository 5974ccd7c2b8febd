"""TOVA: what the last query weighs least goes first (token omission via attention)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import New, Policy, Stored

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["TOVA"]


@dataclass(frozen=True)
class TOVA(Policy):
    """Keep the entries with the most softmax weight of the last query, averaged over heads.

    The rule of "Transformers are Multi-State RNNs" (arXiv 2401.06104). There the last query is
    that of the newest token; here it is the last real query of a chunk. Use it with
    ``present="visible"``, as the preset ``"TOVA"`` does, so that an entry is weighed before it
    competes.

    Notes
    -----
    The same scores as ``LRA("last", score="softmax", heads="mean")`` once an entry was seen.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.TOVA(), present="visible").policy
    TOVA()
    """

    def enter(self, stored: Stored, new: New) -> Array:
        """Return 0: the last query has not weighed a new entry yet."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the weights of the last query."""
        last = attention.last()
        return last.pool(last.weights, heads="mean")
