"""SnapKV: the entry with the least weight from the last queries, around it too, goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, InitialScore, Scored
from attendre_core.policies.published.parts import around, check_window

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["SnapKV"]


@dataclass(frozen=True)
class SnapKV(Scored):
    """Keep what the last queries attend to, and its neighbours.

    The rule of "SnapKV: LLM Knows What You are Looking for Before Generation" (arXiv 2404.14469):
    softmax weights of a window of queries, summed over them, averaged over heads, then averaged
    over neighbours. There the window is the end of the prompt; here it is the end of each step.

    Parameters
    ----------
    window
        How many of the last valid queries of a step count; None = all of them.
    kernel
        Neighbours that are averaged, the entry itself among them; odd, 1 = no neighbours.
    initial
        Score of new entries, where it matters: see ``present`` of the memory.

    Notes
    -----
    Neighbours are the entries that arrived up to ``kernel // 2`` before or after an entry, which
    are the next tokens of the input on both sides. A neighbour that was evicted, or that lies
    beyond the ends of the input, counts as a weight of 0, and so does one that none of the last
    queries saw. Entries that none of them saw keep their scores.

    Law: with ``window=None`` and ``kernel=1`` the same scores as
    ``LRA("sum", score="softmax", heads="mean")``.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.SnapKV(window=16), present="visible").policy.kernel
    5
    """

    window: int | None = 32
    kernel: int = 5
    initial: AnyInitial = InitialScore(0.0)

    def __post_init__(self) -> None:
        check_window("SnapKV", self.window)
        if self.kernel < 1 or self.kernel % 2 == 0:
            raise ConfigError(
                f"SnapKV: kernel is {self.kernel}, expected an odd number: 5 averages an entry "
                "with two neighbours on each side, 1 with none."
            )

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the weights of the last queries, averaged over neighbours."""
        view = attention if self.window is None else attention.last(self.window)
        xp = namespace_of(stored.score)
        weights = view.pool("weights", heads="mean", unseen=xp.zeros_like(stored.score))
        score = around(weights, stored, self.kernel // 2) / self.kernel
        return xp.where(view.seen, score, stored.score)
