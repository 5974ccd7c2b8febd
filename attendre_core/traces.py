"""When and why a position was evicted, from the records of a layer's steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from attendre_core.backend import backend_of
from attendre_core.errors import ConfigError
from attendre_core.layer.trace import REASONS, StepTrace
from attendre_core.tree import tree_map

__all__ = ["Eviction", "Trace"]


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
