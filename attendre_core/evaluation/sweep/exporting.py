"""Everything that a results file can be turned into, written beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

from attendre_core.errors import ConfigError, StateError
from attendre_core.evaluation.benchmarks.benchmark import Metric
from attendre_core.evaluation.sweep.plots import draw_all
from attendre_core.evaluation.sweep.store import Record, read_results
from attendre_core.evaluation.sweep.summary import Summary, summarise, where_reading_helps
from attendre_core.evaluation.sweep.writing import latex, markdown

__all__ = ["Report", "report", "summary_of"]


class Report(NamedTuple):
    """A summary, and the files that were written."""

    summary: Summary
    files: list[Path]


def summary_of(
    path: Path, metrics: tuple[Metric, ...], baseline: str, *, helped: bool = False
) -> Summary:
    """Summarise a results file.

    Parameters
    ----------
    baseline
        The policy that all are compared with.
    helped
        Only items that full attention does better than closed book.
    """
    _, records = read_results(path)
    if helped:
        records = where_reading_helps(records, metrics[0])
    return _summary(path, records, metrics, baseline)


def report(folder: Path, metrics: tuple[Metric, ...], baseline: str) -> Report:
    """Write tables, pictures and, where pyarrow is installed, Parquet beside ``results.jsonl``."""
    path = folder / "results.jsonl"
    header, records = read_results(path)
    summary = _summary(path, records, metrics, baseline)
    texts = {"table.md": markdown(summary), "table.tex": latex(summary)}
    helped = where_reading_helps(records, metrics[0])
    if baseline in {record.cell.policy for record in helped}:
        texts["table_where_reading_helps.md"] = markdown(summarise(helped, metrics, baseline))
    files = [path]
    try:
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
            files.append(folder / name)
        files += draw_all(folder, f"{header['task']}, {header['model']}", summary, records)
        if importlib.util.find_spec("pyarrow") is not None:
            files.append(_parquet(folder / "results.parquet", records))
    except OSError as error:
        raise StateError(
            f"eval: tables and pictures cannot be written to {folder} ({error}). All results are "
            f"in {path}: once there is room, the same command writes the rest and measures nothing "
            "again."
        ) from error
    return Report(summary, files)


def _summary(
    path: Path, records: list[Record], metrics: tuple[Metric, ...], baseline: str
) -> Summary:
    if not records:
        raise StateError(f"eval: {path} has no results yet.")
    policies = {record.cell.policy for record in records}
    if baseline not in policies:
        raise ConfigError(
            f"eval: the baseline {baseline!r} was not measured; there are "
            f"{', '.join(sorted(policies))}. Choose one with --baseline."
        )
    return summarise(records, metrics, baseline)


def _parquet(path: Path, records: list[Record]) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [{**r.cell._asdict(), "item": r.item, **r.score} for r in records]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(table, path)
    return path
