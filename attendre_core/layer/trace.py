"""A record of what a memory inserted and evicted, cheap enough to leave on.

A layer with ``trace=True`` returns a `StepTrace`, a tuple of arrays, from every step, also in
compiled code. `attendre_core.traces` says what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.backend import Array, backend_of
from attendre_core.policies.base import Stored

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory
    from attendre_core.memory.state import EvictedEntries, KeyValueState

__all__ = ["REASONS", "StepTrace", "trace_step"]

#: What the numbers in `StepTrace.reason` mean.
REASONS = ("none", "refused", "lower score", "tie, older", "oldest")


class StepTrace(NamedTuple):
    """What one step inserted and evicted.

    With ``per_head=True``, all but ``inserted`` have an axis for K/V heads after the batch.

    Attributes
    ----------
    inserted
        int32, (batch, seq): the positions of the chunk; -1 for padding.
    evicted
        int32, (batch, seq): positions that were evicted, including new ones that were refused; -1
        for none.
    score
        (batch, seq): the score of each evicted entry.
    threshold
        (batch, 1): the lowest score among the entries that stayed but could have been evicted. If
        all that stayed are protected, the highest score that was evicted.
    reason
        int8, (batch, seq): index into `REASONS`.
    """

    inserted: Array
    evicted: Array
    score: Array
    threshold: Array
    reason: Array


def trace_step(
    memory: KeyValueMemory,
    before: KeyValueState,
    after: KeyValueState,
    params: Any,
    position: Array,
    valid: Array,
    evicted: EvictedEntries,
) -> StepTrace:
    """Describe one insertion; ``params`` are the policy's."""
    xp = backend_of(after.key).xp
    policy = memory.policy
    chronological = policy.priority(Stored(*after[:10], after.policy_state, params)) is None
    since = before.clock if memory.present == "compete" else before.chunk_start
    since = xp.reshape(since, since.shape + (1,) * (evicted.valid.ndim - 1))
    # What stayed but could have been evicted: not pinned, not a sink, not recent, and in visible
    # mode not part of the chunk just inserted.
    free = after.valid & ~after.pinned & (after.arrival >= memory.all_sinks)
    clock = after.clock if memory.present == "compete" else before.clock
    clock = xp.reshape(clock, clock.shape + (1,) * (evicted.valid.ndim - 1))
    free = free & (after.arrival < clock - memory.protect_recent)
    threshold = xp.min(xp.where(free, after.score, float("inf")), axis=-1, keepdims=True)
    some = xp.any(free, axis=-1, keepdims=True)
    best = xp.max(xp.where(evicted.valid, evicted.score, -float("inf")), axis=-1, keepdims=True)
    best = xp.where(best == -float("inf"), xp.zeros_like(best), best)
    threshold = xp.where(some, threshold, best)
    late = evicted.arrival >= since
    lower, tied = xp.full_like(evicted.position, 2), xp.full_like(evicted.position, 3)
    code = xp.where(evicted.score < threshold, lower, tied)
    if chronological:
        code = xp.full_like(code, 4)
    code = xp.where(late, xp.full_like(code, 1), code)
    nothing = xp.zeros_like(code)
    return StepTrace(
        inserted=xp.where(valid, position, xp.full_like(position, -1)),
        evicted=xp.where(evicted.valid, evicted.position, nothing - 1),
        score=xp.where(evicted.valid, evicted.score, xp.zeros_like(evicted.score)),
        threshold=threshold,
        reason=xp.astype(xp.where(evicted.valid, code, nothing), xp.int8),
    )
