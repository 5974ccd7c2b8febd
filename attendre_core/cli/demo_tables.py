"""The output of ``attendre demo``: tables, sentences, pictures, JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.files import write_text

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Measured, Summary
    from attendre_core.evaluation.tasks import SyntheticTask

__all__ = ["CHUNK", "TOP_K", "TaskResult", "as_json", "draw", "print_result"]

#: Chunk S and top K of the tiny models.
CHUNK, TOP_K = 16, 16


class TaskResult(NamedTuple):
    """The results of one model on one task."""

    model: str
    task: SyntheticTask
    measured: list[Measured]
    summary: Summary

    @property
    def title(self) -> str:
        """Model, task and kind of answers, for headings."""
        return f"{self.model}, {self.task.name}, {self.task.answers}"


def as_json(results: Sequence[TaskResult], backend: str, picture: str) -> dict[str, Any]:
    """Return everything that the tables show, as values for JSON."""
    from attendre_core.evaluation.sweep.findings import findings

    return {
        "command": "demo",
        "settings": {
            "documents": results[0].task.limit, "seed": results[0].task.seed, "chunk": CHUNK,
            "top_k": TOP_K, "backend": backend,
        },
        "picture": picture,
        "tables": [
            {
                "model": result.model,
                "task": result.task.name,
                "answers": result.task.answers,
                "rows": [row.plain() for row in result.summary.rows],
                "findings": findings(result.measured, CHUNK),
            }
            for result in results
        ],
    }  # fmt: skip


def print_result(result: TaskResult, terminal: Terminal) -> None:
    """Print a table of right answers, one of the diagnostics, and what they show in sentences."""
    from attendre_core.evaluation.sweep.findings import findings
    from attendre_core.evaluation.sweep.table import percent, shares, size_table, sizeless_line

    wide = max(60, min(terminal.columns, 100))
    print(terminal.paint(result.title, "bold"))
    print(
        f"right answers in %, 95 % intervals; {result.task.limit} documents of {8 * CHUNK} to "
        f"{32 * CHUNK} tokens, chunks of {CHUNK}, top {TOP_K}, seed {result.task.seed}\n"
        "M: entries per memory; N: positions that queries wait\n"
    )
    table = size_table(result.summary, percent)
    _print_blocks(
        table.plain(lambda text: terminal.paint(text, "green")) if table.rows else "",
        sizeless_line(result.summary, percent),
        "share of new entries let in, share of a chunk's own entries there when it attends",
        size_table(result.summary, shares).plain() if table.rows else "",
        sizeless_line(result.summary, shares),
    )
    for sentence in findings(result.measured, CHUNK):
        # Keep a number and its percent sign on one line.
        joined = sentence.replace(" %", "\0%")
        text = textwrap.fill(
            joined, wide, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
        print(text.replace("\0", " "))
    print()


def _print_blocks(*texts: str) -> None:
    for text in texts:
        if text:
            print(text + "\n")


def draw(results: Sequence[TaskResult], path: str) -> str:
    """Write a picture per table; return a line that says where, or why there is none."""
    from attendre_core.evaluation.sweep.charts import score_panels
    from attendre_core.evaluation.sweep.svg import chart

    written = []
    for result in results:
        panels = score_panels(result.summary)
        if not panels:
            continue
        file = Path(path)
        if len(results) > 1:
            stem = "-".join([file.stem, result.model, result.task.name, result.task.answers])
            file = file.with_name(stem + file.suffix)
        try:
            write_text(file.expanduser(), chart(f"Right answers: {result.title}", panels))
        except OSError as error:
            raise ConfigError(
                f"demo: the picture cannot be written to {file} ({error.strerror}). Give another "
                "file with --picture."
            ) from error
        written.append(str(file))
    if not written:
        return "No picture: only controls without a memory were measured."
    if len(written) == 1:
        return f"Picture: {written[0]} (opens in any browser)"
    return f"Pictures, which open in any browser: {', '.join(written)}"
