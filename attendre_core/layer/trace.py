"""A record of what a memory inserted and evicted, cheap enough to leave on.

A layer with ``trace=True`` returns a `StepTrace`, a tuple of arrays, from every step, also in
compiled code. A `Trace` collects them and says when and why a position was evicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.policies.base import Stored
from attendre_core.tree import tree_map

if TYPE_CHECKING:
    from attendre_core.memory.key_value import KeyValueMemory
    from attendre_core.memory.state import EvictedEntries, KeyValueState

__all__ = ["REASONS", "Eviction", "StepTrace", "Trace", "trace_step"]

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
    position: Array,
    valid: Array,
    evicted: EvictedEntries,
    params: Any = None,
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


@dataclass(frozen=True)
class Eviction:
    """One evicted entry.

    Attributes
    ----------
    layer, step, row
        Where and when.
    head
        The K/V head with ``per_head=True``, else None.
    position
        Position of the entry.
    reason
        One of `REASONS`.
    score, threshold
        Its score, and the score that it had to beat (`StepTrace.threshold`).
    """

    layer: int
    step: int
    row: int
    head: int | None
    position: int
    reason: str
    score: float
    threshold: float

    def __str__(self) -> str:
        where = f"layer {self.layer}, step {self.step}: position {self.position} "
        if self.reason == "oldest":
            return where + "was evicted as the oldest"
        verb = "was refused" if self.reason == "refused" else f"was evicted ({self.reason})"
        return f"{where}{verb}, score {self.score:.4g}, threshold {self.threshold:.4g}"


@dataclass
class Trace:
    """Step traces of one or more layers, in order.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> layer = at.AttendreLayer(at.KeyValueMemory(4), trace=True)
    >>> state, trace = layer.init(batch=1, heads=1, head_dim=2), at.Trace()
    >>> for _ in range(3):
    ...     ones = np.ones((1, 2, 1, 2), dtype=np.float32)
    ...     state, out = layer.step(state, at.Chunk(ones, ones, ones))
    ...     trace.add(out.trace)
    >>> print(trace.when_evicted(1)[0])
    layer 0, step 2: position 1 was evicted as the oldest
    """

    steps: list[list[StepTrace]] = field(default_factory=list)

    def add(self, step: StepTrace | None, layer: int = 0) -> None:
        """Copy one step of one layer to NumPy and store it."""
        if step is None:
            raise ConfigError("Trace.add: there is no trace. Make the layer with trace=True.")
        while len(self.steps) <= layer:
            self.steps.append([])
        self.steps[layer].append(
            tree_map(lambda leaf: np.array(backend_of(leaf).to_numpy(leaf)), step)
        )

    def evictions(self, layer: int = 0, row: int = 0) -> list[Eviction]:
        """List everything that was evicted from one row of one layer, in order."""
        evicted = []
        for number, step in enumerate(self.steps[layer]):
            for place in np.argwhere(step.reason[row] > 0):
                at = (row, *place)
                bound = step.threshold[(row, *place[:-1], 0)]
                evicted.append(
                    Eviction(
                        layer=layer,
                        step=number,
                        row=row,
                        head=int(place[0]) if len(place) == 2 else None,
                        position=int(step.evicted[at]),
                        reason=REASONS[int(step.reason[at])],
                        score=float(step.score[at]),
                        threshold=float(bound),
                    )
                )
        return evicted

    def when_evicted(self, position: int, layer: int = 0, row: int = 0) -> list[Eviction]:
        """Return when and why a position was evicted: an empty list if it was not.

        With ``per_head=True`` there is one eviction per head that evicted it.
        """
        return [e for e in self.evictions(layer, row) if e.position == position]

    def survival(self, layer: int = 0, row: int = 0) -> dict[int, tuple[int, int | None]]:
        """Return for each position the steps of its insertion and its eviction (or None).

        With ``per_head=True`` a position is evicted once every head has evicted it.
        """
        life: dict[int, tuple[int, int | None]] = {}
        gone: dict[int, int] = {}
        shape = self.steps[layer][0].evicted.shape if self.steps[layer] else (0, 0)
        holders: dict[int, int] = {}
        for e in self.evictions(layer, row):
            holders[e.position] = holders.get(e.position, shape[1] if len(shape) == 3 else 1) - 1
            if holders[e.position] == 0:
                gone[e.position] = e.step
        for number, step in enumerate(self.steps[layer]):
            for position in step.inserted[row][step.inserted[row] >= 0].tolist():
                life[position] = (number, gone.get(position))
        return life

    def to_arrays(self) -> dict[str, Any]:
        """Return all evictions as columns: layer, step, row, head, position, reason, ..."""
        rows = [
            e
            for layer, steps in enumerate(self.steps)
            for row in range(len(steps[0].inserted) if steps else 0)
            for e in self.evictions(layer, row)
        ]
        columns = {
            name: np.asarray([getattr(e, name) for e in rows])
            for name in ("layer", "step", "row", "position", "reason", "score", "threshold")
        }
        heads = [-1 if e.head is None else e.head for e in rows]
        return {**columns, "head": np.asarray(heads, dtype=np.int64)}

    def to_parquet(self, path: str) -> None:
        """Write `to_arrays` as a Parquet file; needs the package pyarrow."""
        try:
            import pyarrow
            from pyarrow import parquet
        except ModuleNotFoundError as error:
            raise ConfigError(
                "Trace.to_parquet: the package pyarrow is not installed. Install it with pip "
                "install 'attendre-core[eval]', or use to_arrays()."
            ) from error
        parquet.write_table(pyarrow.table(self.to_arrays()), path)
