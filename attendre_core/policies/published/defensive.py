"""Defensive: the entry that no recent query needed much, with the shortest value, goes first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attendre_core.backend import Array, namespace_of
from attendre_core.ops.counting import count_true
from attendre_core.policies.base import Stored
from attendre_core.policies.initial_score import AnyInitial, InitialScore, Scored
from attendre_core.policies.published.parts import (
    check_window,
    decided,
    norms,
    projected_norms,
    real,
)

if TYPE_CHECKING:
    from attendre_core.policies.view import Attention

__all__ = ["Defensive"]


@dataclass(frozen=True)
class Defensive(Scored):
    """Keep what any recent query attends to: the largest softmax weight, at least the mean.

    The rule of "Taming the Fragility of KV Cache Eviction in LLM Inference" (arXiv 2510.13334),
    DefensiveKV: the maximum over a window of queries and over the heads that decide together,
    raised to its mean over the stored entries, times the length of the value. It leaves out their
    average over neighbours before the maximum, and their first stage, which keeps the entries
    with 90 per cent of the weight whatever their values are.

    Parameters
    ----------
    window
        How many of the last valid queries of a step count; None = all of them.
    value_norm
        Multiply by the norm of the value, averaged over heads.
    output_norm
        Multiply by the sum of absolute values of what the value adds to the output of the layer,
        averaged over heads, as published. ``policy_params`` is then ``{"output": W}``, where W is
        the output projection by head, (heads, value_dim, model_dim). It is computed anew in every
        step, which costs more than attending does.
    initial
        Score of new entries, where it matters: see ``present`` of the memory.

    Notes
    -----
    Entries below the mean have equal scores if no norm is used: the oldest of them goes first.
    Entries that none of the last queries saw keep their scores, and do not count in the mean.

    Law: without a norm, and with ``window=None``, a score is that of
    ``LRA("max", score="softmax")`` or the mean of these, whichever is larger.

    Examples
    --------
    >>> import attendre_core as at
    >>> at.KeyValueMemory(64, at.Defensive(value_norm=True), present="visible").policy.window
    32
    """

    window: int | None = 32
    value_norm: bool = False
    output_norm: bool = False
    initial: AnyInitial = InitialScore(0.0)

    def __post_init__(self) -> None:
        check_window("Defensive", self.window)

    def observe(self, stored: Stored, attention: Attention) -> Array:
        """Return the largest weights, raised to their mean, times the norms of the values."""
        xp = namespace_of(stored.score)
        view = attention if self.window is None else attention.last(self.window)
        nothing = xp.zeros_like(stored.score)
        most = view.pool("weights", queries="max", heads="max", unseen=nothing)
        count = count_true(view.seen, axis=-1)[..., None]
        count = xp.astype(xp.maximum(count, xp.ones_like(count)), most.dtype)
        score = xp.maximum(most, xp.sum(most, axis=-1, keepdims=True, dtype=most.dtype) / count)
        value = real(attention.value, stored.valid)
        if self.value_norm:
            score = score * decided(norms(value), stored)
        if self.output_norm:
            score = score * decided(projected_norms(value, stored.params), stored)
        return xp.where(view.seen, score, stored.score)
