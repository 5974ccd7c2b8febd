"""Pictures of a summary: score against M, gain from waiting, score against bytes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep.store import Measured
from attendre_core.evaluation.sweep.summary import Row, Summary, paired
from attendre_core.evaluation.sweep.svg import Line, Panel, Scale, chart
from attendre_core.evaluation.tasks.task import Metric
from attendre_core.files import write_text

__all__ = ["draw_all", "scale_around", "score_panels"]

#: Panels without and with waiting queries, and their titles.
_PANELS = ((False, "queries attend at once (N = 0)"), (True, "queries wait (N > 0)"))


def draw_all(
    folder: Path, title: str, summary: Summary, measured: Sequence[Measured]
) -> list[Path]:
    """Write SVG pictures into ``folder`` and return their paths.

    ``score.svg`` shows the first metric against M, in one panel without and one with waiting
    queries; ``waiting.svg`` what a Q memory adds at the same M; ``memory.svg`` the first metric
    against the bytes kept. Pictures without data are left out.
    """
    metric = summary.metrics[0]
    label = "loss" if metric.exponential else metric.label
    pictures = {
        "score.svg": (f"{title}: {label}", score_panels(summary)),
        "waiting.svg": (f"{title}: what waiting adds to {label}", _waiting(measured, metric)),
        "memory.svg": (f"{title}: {label} and memory", _memory(summary, metric)),
    }
    written = []
    for name, (words, panels) in pictures.items():
        if panels:
            write_text(folder / name, chart(words, panels))
            written.append(folder / name)
    return written


def scale_around(intervals: Iterable[Interval], metric: Metric) -> Scale:
    """Choose a y axis with round numbers that contains all intervals.

    Examples
    --------
    >>> scale = scale_around([Interval(-5.0, -5.5, -4.6)], Metric("loss", "loss"))
    >>> scale.low, scale.high, scale.step
    (-5.6, -4.6, 0.2)
    """
    ends = [end for interval in intervals for end in interval]
    low, high = min(ends), max(ends)
    span = max(high - low, 1e-3)
    size = 10.0 ** math.floor(math.log10(span))
    step = next(x * size for x in (0.2, 0.5, 1.0, 2.0) if span <= 6 * x * size)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    bottom, top = round(first * step, 9), round(last * step, 9)
    if metric.share:
        return Scale(bottom, top, step)
    digits = max(0, -math.floor(math.log10(step)))
    return Scale(bottom, top, step, lambda y: f"{y:.{digits}f}", "")


def score_panels(summary: Summary) -> list[Panel]:
    """Return panels of the first metric against M; none if every system is without a size."""
    name = summary.metrics[0].name
    scale = scale_around((row.values[name] for row in summary.rows), summary.metrics[0])
    panels = []
    for waiting, title in _PANELS:
        rows = [row for row in summary.rows if row.cell.kv and (row.cell.q > 0) == waiting]
        if not rows:
            continue
        sizes = sorted({row.cell.kv for row in rows})
        lines = [
            # A control without a size is a horizontal line.
            Line(row.cell.policy, [(kv, row.values[name]) for kv in {sizes[0], sizes[-1]}])
            for row in summary.rows
            if not row.cell.kv
        ]
        for policy in dict.fromkeys(row.cell.policy for row in rows):
            points = {row.cell.kv: row.values[name] for row in rows if row.cell.policy == policy}
            lines.append(Line(policy, sorted(points.items())))
        panels.append(Panel(title, "M, entries per memory", lines, scale))
    return panels


def _waiting(measured: Sequence[Measured], metric: Metric) -> list[Panel]:
    cells = {each.cell: each for each in measured}
    points: dict[str, dict[int, Interval]] = {}
    for cell, waiting in cells.items():
        at_once = cells.get(cell._replace(q=0))
        gap = paired(waiting, at_once, metric.name) if cell.q and at_once else None
        if gap is not None:
            points.setdefault(cell.policy, {})[cell.kv] = gap
    if not points:
        return []
    lines = [Line(policy, sorted(gaps.items())) for policy, gaps in points.items()]
    scale = scale_around((gap for line in lines for _, gap in line.points), metric)
    return [Panel("with N > 0 minus with N = 0", "M, entries per memory", lines, scale)]


def _memory(summary: Summary, metric: Metric) -> list[Panel]:
    def kibibytes(row: Row) -> int:
        return max(round(row.nbytes / 1024), 1)

    rows = [row for row in summary.rows if row.nbytes > 0]
    scale = scale_around((row.values[metric.name] for row in summary.rows), metric)
    panels = []
    for waiting, title in _PANELS:
        shown = [row for row in rows if not row.cell.kv or (row.cell.q > 0) == waiting]
        lines = []
        for policy in dict.fromkeys(row.cell.policy for row in shown):
            points = {
                kibibytes(row): row.values[metric.name]
                for row in shown
                if row.cell.policy == policy
            }
            lines.append(Line(policy, sorted(points.items())))
        if any(row.cell.kv for row in shown):
            panels.append(Panel(title, "KiB kept per input", lines, scale))
    return panels
