"""From records to the rows of a table: means with intervals, and differences to a baseline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from attendre_core.evaluation.benchmarks.benchmark import Metric
from attendre_core.evaluation.intervals import Interval, share
from attendre_core.evaluation.sweep.plan import Cell
from attendre_core.evaluation.sweep.store import Record

__all__ = ["Row", "Summary", "mean_of", "paired", "summarise", "where_reading_helps"]

_DRAWS = 2000


class Row(NamedTuple):
    """One cell.

    Attributes
    ----------
    cell, items
        The system at its size, and on how many items it was measured.
    values
        Mean of each metric with its 95 % interval.
    gap
        How much more the first metric is than the baseline's, paired by item; None for the
        baseline itself and where there is no baseline of this size.
    admitted, present, nbytes
        Means of the diagnostics.
    """

    cell: Cell
    items: int
    values: dict[str, Interval]
    gap: Interval | None
    admitted: float
    present: float
    nbytes: float


class Summary(NamedTuple):
    """All rows, what their columns mean, and which policy is the baseline."""

    metrics: tuple[Metric, ...]
    baseline: str
    rows: list[Row]


def mean_of(values: Any, *, share_of: bool = False) -> Interval:
    """Return a mean with its interval: by bootstrap, or Wilson's for a share of yes and no.

    Examples
    --------
    >>> [round(x, 2) for x in mean_of([1.0, 2.0, 3.0, 4.0])]
    [2.5, 1.5, 3.5]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if share_of and np.isin(numbers, (0.0, 1.0)).all():
        return share(numbers)
    return _bootstrap(numbers)


def paired(values: dict[str, float], others: dict[str, float]) -> Interval | None:
    """Return the mean difference on the items that both have; None if there is none.

    Examples
    --------
    >>> paired({"a": 2.0, "b": 3.0}, {"a": 1.0, "b": 2.0, "c": 9.0})
    Interval(value=1.0, low=1.0, high=1.0)
    """
    gaps = [values[name] - others[name] for name in values if name in others]
    return _bootstrap(np.asarray(gaps)) if gaps else None


def summarise(records: Sequence[Record], metrics: Sequence[Metric], baseline: str) -> Summary:
    """Make a row of each cell, sizeless ones first, then by N and M, in the order of the file.

    Parameters
    ----------
    metrics
        Those that were not measured are left out.
    baseline
        A policy; rows are compared with it at their own size, and controls without a size only
        if there is a single one.
    """
    cells: dict[Cell, dict[str, dict[str, float]]] = {}
    for record in records:
        cells.setdefault(record.cell, {})[record.item] = record.score
    used = tuple(m for m in metrics if any(m.name in record.score for record in records))
    sizes = {(cell.kv, cell.q) for cell in cells if cell.kv}
    order = sorted(cells, key=lambda cell: (cell.kv > 0, cell.q, cell.kv))
    rows = []
    for cell in order:
        items = cells[cell]
        other = _baseline_of(cell, baseline, sizes)
        gap = None
        if other is not None and other != cell and other in cells:
            first = used[0].name
            gap = paired(_column(items, first), _column(cells[other], first))
        values = {
            m.name: mean_of(list(_column(items, m.name).values()), share_of=m.share) for m in used
        }
        shares = [_mean(items, name) for name in ("admitted", "present", "bytes")]
        rows.append(Row(cell, len(items), values, gap, *shares))
    return Summary(used, baseline, rows)


def where_reading_helps(records: Sequence[Record], metric: Metric) -> list[Record]:
    """Keep the items that full attention does better than closed book.

    On other items a memory that forgets the context and keeps the question looks good. The two
    controls choose, which moves their own rows apart; the policies have no part in it.
    Nothing is left where one of the two controls is missing.
    """
    full, closed = (
        {r.item: r.score[metric.name] for r in records if r.cell.policy == name}
        for name in ("full", "closed-book")
    )
    sign = 1 if metric.higher else -1
    helped = {name for name in full if name in closed and sign * (full[name] - closed[name]) > 0}
    return [record for record in records if record.item in helped]


def _baseline_of(cell: Cell, baseline: str, sizes: set[tuple[int, int]]) -> Cell | None:
    from attendre_core.evaluation.grid import SIZELESS

    if baseline in SIZELESS:
        return Cell(baseline, 0, 0)
    if cell.kv:
        return Cell(baseline, cell.kv, cell.q)
    return Cell(baseline, *next(iter(sizes))) if len(sizes) == 1 else None


def _column(items: dict[str, dict[str, float]], name: str) -> dict[str, float]:
    return {item: score[name] for item, score in items.items() if name in score}


def _mean(items: dict[str, dict[str, float]], name: str) -> float:
    column = _column(items, name)
    return math.fsum(column.values()) / len(column) if column else math.nan


def _bootstrap(numbers: Any) -> Interval:
    rng = np.random.default_rng(0)
    means = numbers[rng.integers(0, numbers.size, (_DRAWS, numbers.size))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(numbers.mean()), float(low), float(high))
