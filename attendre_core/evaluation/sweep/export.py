"""Tables, pictures and Parquet, written next to a results file."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attendre_core.errors import ConfigError, StateError
from attendre_core.evaluation.sweep.charts import draw_all
from attendre_core.evaluation.sweep.store import Measured, read_results
from attendre_core.evaluation.sweep.summary import Summary, summarise, where_reading_helps
from attendre_core.evaluation.sweep.table import cell_table
from attendre_core.evaluation.tasks.task import Metric
from attendre_core.files import write_text

__all__ = ["Report", "report"]


class Report(NamedTuple):
    """A summary, and the files of its folder: the results and what was made from them."""

    summary: Summary
    files: list[Path]


def report(
    folder: Path, metrics: Sequence[Metric], baseline: str, *, equal_bytes: bool = False
) -> Report:
    """Write tables, pictures and, if pyarrow is installed, Parquet next to ``results.jsonl``.

    Parameters
    ----------
    metrics, baseline, equal_bytes
        As in `summarise`.
    """
    path = folder / "results.jsonl"
    identity, measured = read_results(path)
    if not measured:
        raise StateError(f"results: {path} has no results yet.")
    policies = {each.cell.policy for each in measured}
    if baseline not in policies:
        raise ConfigError(
            f"results: the baseline {baseline!r} was not measured; there are "
            f"{', '.join(sorted(policies))}. Choose one with --baseline."
        )
    summary = summarise(measured, metrics, baseline, equal_bytes=equal_bytes)
    table = cell_table(summary)
    texts = {"table.md": table.markdown(), "table.tex": table.latex()}
    helped = where_reading_helps(measured, metrics[0])
    if baseline in {each.cell.policy for each in helped}:
        helped_table = cell_table(summarise(helped, metrics, baseline, equal_bytes=equal_bytes))
        texts["table_where_reading_helps.md"] = helped_table.markdown()
    files = [path]
    try:
        for name, text in texts.items():
            write_text(folder / name, text + "\n")
            files.append(folder / name)
        title = f"{identity['task']}, {identity['model']}"
        files += draw_all(folder, title, summary, measured)
        if importlib.util.find_spec("pyarrow") is not None:
            files.append(_parquet(folder / "results.parquet", measured))
    except OSError as error:
        raise StateError(
            f"results: tables and pictures cannot be written to {folder} ({error}). All results "
            f"are safe in {path}: free some space and run the same command again; nothing is "
            "measured twice."
        ) from error
    return Report(summary, files)


def _parquet(path: Path, measured: Sequence[Measured]) -> Path:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {**each.cell._asdict(), "item": item, **score}
        for each in measured
        for item, score in each.scores.items()
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    table = pyarrow.table({name: [row.get(name) for row in rows] for name in names})
    pyarrow.parquet.write_table(table, path)
    return path
