"""DropKV: the entry without which the outputs of the last queries change least goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, InitialScore, Scored
from attendre_core.policies.published.parts import check_window, real

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["DropKV"]


@dataclass(frozen=True)
class DropKV(Scored):
    """Keep the entries whose loss would change the outputs of the last queries most.

    The rule of DropKV, decoupled residual-output perturbation (OpenReview MqfNzH3TVH): without
    entry j, the output o of a query moves by p / (1 - p) * (o - v), where p is the weight and v
    the value of j. The score is the square of that distance, summed over a window of queries and
    averaged over heads.

    Parameters
    ----------
    window
        How many of the last valid queries of a step count; None = all of them.
    initial
        Score of new entries, where it matters: see ``present`` of the memory.

    Notes
    -----
    The entry that has more than half of a query's weight is compared with the output of all
    others, computed without it, since o - v and 1 - p are differences of almost equal numbers
    there. If there are no others, losing it would leave an output of 0. Entries that none of the
    last queries saw keep their scores.

    Law: adding the same vector to all values changes nothing, while a query sees at least two
    entries.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(size=64, policy=at.DropKV(), present="visible").policy.window
    32
    """

    window: int | None = 32
    initial: AnyInitial = InitialScore(0.0)

    def __post_init__(self) -> None:
        check_window("DropKV", self.window)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return how far the outputs would move without each entry."""
        xp = namespace_of(stored.score)
        view = attention if self.window is None else attention.last(self.window)
        weights, value = view.weights, real(view.value, stored.valid)
        major = weights > 0.5  # at most one entry for each query
        minor = xp.where(major, xp.zeros_like(weights), weights)
        moved = (minor / (1 - minor)) ** 2 * _distances(ops.mix(weights, value), value)
        others = xp.sum(minor, axis=-1, keepdims=True, dtype=minor.dtype)
        rest = ops.mix(minor, value) / xp.where(others > 0, others, xp.ones_like(others))
        without = rest - ops.mix(xp.astype(major, weights.dtype), value)
        lost = xp.sum(without * without, axis=-1, keepdims=True, dtype=without.dtype)
        return view.pool(xp.where(major, weights**2 * lost, moved), heads="mean")


def _distances(output: Array, value: Array) -> Array:
    """Return squared distances, (batch, G, R, queries, slots), of every output to every value."""
    xp = namespace_of(output)
    one, other = (xp.sum(x * x, axis=-1, dtype=x.dtype) for x in (output, value))
    both = one[..., None] + other[:, :, None, None, :] - 2 * ops.logits_of(output, value)
    return xp.maximum(both, xp.zeros_like(both))
