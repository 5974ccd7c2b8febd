"""Summarise results as rows of a table: means with intervals, and differences to a baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from attendre_core.evaluation.intervals import ENOUGH, Interval, difference, mean, share
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.sweep.store import Measured
from attendre_core.evaluation.tasks.task import Metric

__all__ = [
    "Row",
    "Summary",
    "cost_of",
    "estimate",
    "paired",
    "summarise",
    "where_reading_helps",
]


class Row(NamedTuple):
    """The summary of one cell.

    Attributes
    ----------
    cell, items
        The system at its size, and the number of items measured.
    values
        Mean of each metric with its 95 % interval, by the name of the metric.
    gap
        How much larger the first metric is than the baseline's, paired by item; None for the
        baseline itself and for sizes without a baseline.
    admitted, present, nbytes, entries
        Means of the diagnostics; NaN if they were not measured.
    cost
        CPU time of reading, divided by the baseline's on the same items; NaN if not measured.
    pairs
        How many items ``gap`` compares.
    """

    cell: Cell
    items: int
    values: dict[str, Interval]
    gap: Interval | None
    admitted: float
    present: float
    nbytes: float
    entries: float = math.nan
    cost: float = math.nan
    pairs: int = 0

    @property
    def is_sure(self) -> bool:
        """Whether the difference to the baseline is worth emphasis: it excludes 0, with n >= 20."""
        return self.gap is not None and self.gap.excludes_zero and self.pairs >= ENOUGH

    def plain(self) -> dict[str, Any]:
        """Return the row as values for JSON; intervals are [value, low, high]."""
        shares = (
            ("admitted", self.admitted), ("present", self.present), ("bytes", self.nbytes),
            ("entries", self.entries), ("cost", self.cost),
        )  # fmt: skip
        return {
            **self.cell._asdict(),
            "items": self.items,
            **{name: list(interval) for name, interval in self.values.items()},
            "gap": None if self.gap is None else list(self.gap),
            **{name: None if math.isnan(value) else value for name, value in shares},
        }


class Summary(NamedTuple):
    """All rows, their metrics, and the name of the baseline."""

    metrics: tuple[Metric, ...]
    baseline: str
    rows: list[Row]


def estimate(values: Iterable[float], metric: Metric) -> Interval:
    """Return a mean with its interval: Wilson's for shares of 0 and 1, else by bootstrap.

    Examples
    --------
    >>> [round(x, 2) for x in estimate([1.0, 2.0, 3.0, 4.0], Metric("loss", "loss"))]
    [2.5, 1.5, 3.5]
    """
    numbers = list(values)
    return share(numbers) if metric.share and set(numbers) <= {0.0, 1.0} else mean(numbers)


def paired(one: Measured, other: Measured, name: str) -> Interval | None:
    """Return the mean difference on the items that both cells have; None if they share none.

    Examples
    --------
    >>> one = Measured(Cell("AS", 16, 0), {"a": {"loss": 2.0}, "b": {"loss": 3.0}})
    >>> other = Measured(Cell("MT", 16, 0), {"a": {"loss": 1.0}, "c": {"loss": 9.0}})
    >>> paired(one, other, "loss")
    Interval(value=1.0, low=1.0, high=1.0)
    """
    first, second = one.column(name), other.column(name)
    both = [item for item in first if item in second]
    if not both:
        return None
    return difference([first[item] for item in both], [second[item] for item in both])


def cost_of(one: Measured, other: Measured) -> float:
    """Return the CPU time of reading, divided by another's on the same items; NaN if unknown.

    Examples
    --------
    >>> one = Measured(Cell("H2O", 16, 0), {"a": {"seconds": 3.0}, "b": {"seconds": 2.0}})
    >>> other = Measured(Cell("MT", 16, 0), {"a": {"seconds": 2.0}})
    >>> cost_of(one, other)
    1.5
    """
    first, second = one.column("seconds"), other.column("seconds")
    both = [item for item in first if item in second]
    total = sum(second[item] for item in both)
    return sum(first[item] for item in both) / total if total else math.nan


def summarise(
    measured: Sequence[Measured],
    metrics: Sequence[Metric],
    baseline: str,
    *,
    equal_bytes: bool = False,
) -> Summary:
    """Make a row per cell: those without a size first, then by N and M, else in given order.

    Parameters
    ----------
    metrics
        Metrics that were not measured are left out.
    baseline
        Name of a system. Rows are compared with it at their own size or, if it was not measured
        there, where it holds as many bytes; controls without a size only if there is a single
        size. Rows that are compared with the same cell stand together.
    equal_bytes
        Compare rows first where the baseline holds as many bytes.
    """
    cells = {each.cell: each for each in measured}
    used = tuple(m for m in metrics if any(each.column(m.name) for each in measured))
    others = [each for each in measured if each.cell.policy == baseline]
    found = {each.cell: _baseline_of(each, others, equal_bytes) for each in measured}
    # M and N of the baseline for rows that are compared with it at a size, their own for others.
    sizes = {}
    for cell, other in found.items():
        _, kv, q = other.cell if other is not None and other.cell.kv else cell
        sizes[cell] = (cell.kv > 0, q, kv)
    if len(others) == len({sizes[cell] for cell in cells if cell.kv}) == 1:
        found |= dict.fromkeys((cell for cell in cells if not cell.kv), others[0])
    rows = []
    for cell in sorted(cells, key=lambda cell: sizes[cell]):
        results, other = cells[cell], found[cell]
        gap, pairs, cost = None, 0, math.nan
        if other is not None:
            cost = cost_of(results, other)
        if other is not None and other is not results:
            gap = paired(results, other, used[0].name)
            pairs = len(results.scores.keys() & other.scores.keys())
        values = {m.name: estimate(results.column(m.name).values(), m) for m in used}
        rows.append(
            Row(
                cell, len(results.scores), values, gap, results.mean("admitted"),
                results.mean("present"), results.mean("bytes"), results.mean("entries"), cost,
                pairs,
            )
        )  # fmt: skip
    return Summary(used, baseline, rows)


def where_reading_helps(measured: Sequence[Measured], metric: Metric) -> list[Measured]:
    """Keep the items on which full attention does better than closed book.

    On all other items, a memory that forgets the context and keeps the question looks good. Only
    the two controls decide which items are kept; this biases their own rows, not those of the
    policies. The result is empty if one of the two controls is missing.
    """
    full, closed = (
        next((m.column(metric.name) for m in measured if m.cell.policy == name), {})
        for name in ("full", "closed-book")
    )
    sign = 1 if metric.higher else -1
    helped = {item for item in full if item in closed and sign * (full[item] - closed[item]) > 0}
    kept = (
        Measured(m.cell, {item: score for item, score in m.scores.items() if item in helped})
        for m in measured
    )
    return [m for m in kept if m.scores]


def _baseline_of(row: Measured, others: Sequence[Measured], equal_bytes: bool) -> Measured | None:
    """Return the cell of the baseline that a row is compared with, if there is one for its size."""
    if others and not others[0].cell.kv:
        return others[0]
    if others and row.cell.policy == others[0].cell.policy:
        return row
    if not row.cell.kv:
        return None
    same = [other for other in others if other.cell[1:] == row.cell[1:]]
    # As near as whole entries come, where every second one may bring a waiting query.
    near = [other for other in others if _bytes_apart(row, other) <= 2]
    near.sort(key=lambda other: _bytes_apart(row, other))
    return next(iter([*near, *same] if equal_bytes else [*same, *near]), None)


def _bytes_apart(one: Measured, other: Measured) -> float:
    """Return the difference of the bytes that two cells hold, in entries; NaN if not measured."""
    first, second = one.mean("bytes"), other.mean("bytes")
    return abs(first - second) / max(first / one.cell.kv, second / other.cell.kv)
