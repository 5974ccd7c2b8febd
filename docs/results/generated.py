"""Markdown about what was written with a memory, from records of multi-turn and continuation."""

from __future__ import annotations

import math
from pathlib import Path

import policies

from attendre_core.evaluation.intervals import ENOUGH
from attendre_core.evaluation.sweep import Measured, Table
from attendre_core.evaluation.sweep.summary import cost_of, paired
from attendre_core.evaluation.sweep.table import gap_text
from attendre_core.evaluation.tasks import Continuation, MultiTurn
from attendre_core.evaluation.tasks.task import Metric

#: The metrics of each task.
METRICS = {task.name: task.metrics for task in (Continuation, MultiTurn)}
#: Generated tokens enter the memory.
INSIDE = "+inside"
#: What others are compared with: the first that holds as many entries.
_PLAIN = ("AS", "AS+visible")


def written_table(name: str, folder: Path = policies.HERE) -> str:
    """Return the table of one record: each system beside what it is compared with.

    A system whose generated tokens are in its memory is compared with the same one that keeps
    them beside it, any other with sinks that hold as many entries.
    """
    record = policies.read_record(name, folder)
    metrics = METRICS[record.identity["task"]]
    kv = min({cell.kv for cell in record.cells} - {0})
    systems = {
        cell.policy if cell.kv in (0, kv) else f"{cell.policy}:{cell.kv}": found
        for cell, found in record.cells.items()
    }
    rows, strong = [], set()
    for i, (policy, found) in enumerate(systems.items()):
        other = _other(systems, policy)
        row = [f"`{policy}`", str(len(found.scores)), f"`{other}`" if other else ""]
        for metric in metrics:
            gap = paired(found, systems[other], metric.name) if other else None
            row += [_mean(metric, found), gap_text(metric, gap) if gap else ""]
            if gap and len(found.scores) >= ENOUGH and (gap.low > 0 or gap.high < 0):
                strong.add((i, len(row) - 1))
        cost = cost_of(found, systems[_PLAIN[0]])
        row += [f"{found.mean('entries'):.0f}", "" if math.isnan(cost) else f"{cost:.2f}"]
        rows.append(row)
    head = [f"{name}, M = {kv}", "n", "compared with"]
    for metric in metrics:
        head += [metric.label + (" %" if metric.share else ""), "difference"]
    return Table([*head, "entries", "cost"], rows, frozenset(strong)).markdown()


def _other(systems: dict[str, Measured], policy: str) -> str:
    if policy.endswith(INSIDE) and policy.removesuffix(INSIDE) in systems:
        return policy.removesuffix(INSIDE)
    held = systems[policy].mean("entries")
    equal = [
        name for name in systems
        if name.partition(":")[0] in _PLAIN
        and name != policy and systems[name].mean("entries") == held
    ]  # fmt: skip
    return (equal or [name for name in _PLAIN[:1] if name != policy] or [""])[0]


def _mean(metric: Metric, found: Measured) -> str:
    digits, scale = (0, 100) if metric.share else (metric.digits, 1)
    return f"{scale * found.mean(metric.name):.{digits}f}".replace("-", "\N{MINUS SIGN}")
