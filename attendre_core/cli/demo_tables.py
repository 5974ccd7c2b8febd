"""The output of ``attendre demo``: sentences, bars, tables, pictures, JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.cli.demo_bars import CHUNK, bars
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError
from attendre_core.files import write_text

if TYPE_CHECKING:
    from attendre_core.cli.demo_story import Story
    from attendre_core.evaluation.sweep import Measured, Summary
    from attendre_core.evaluation.tasks import SyntheticTask

__all__ = ["TOP_K", "TaskResult", "as_json", "draw", "print_result"]

#: Top K of the tiny models.
TOP_K = 16


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


def as_json(
    results: Sequence[TaskResult], stories: Sequence[Story], backend: str, picture: str
) -> dict[str, Any]:
    """Return everything that text and tables show, as values for JSON."""
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
        "stories": [story.plain() for story in stories],
    }  # fmt: skip


def print_result(result: TaskResult, terminal: Terminal, wide: int, *, tables: bool) -> None:
    """Print what was found in sentences and bars; with ``tables``, all sentences and cells."""
    from attendre_core.evaluation.sweep.findings import findings, main_findings

    print(terminal.paint(f"Documents of tokens: {result.title}", "bold"))
    _print_filled(
        f"Right answers to {result.task.limit} documents of {8 * CHUNK} to {32 * CHUNK} tokens, "
        f"read {CHUNK} at a time; each query retrieves {TOP_K} entries; seed {result.task.seed}.",
        wide,
    )
    print()
    for sentence in (findings if tables else main_findings)(result.measured, CHUNK):
        _print_filled(sentence, wide, "- ", "  ")
    print()
    lines = bars(result.summary, terminal, wide)
    if lines:
        print("\n".join([*lines, ""]))
    if tables:
        _print_tables(result.summary, terminal, wide)


def _print_filled(text: str, wide: int, first: str = "", later: str = "") -> None:
    # Keep a number and its percent sign on one line.
    lines = textwrap.wrap(
        text.replace(" %", "\0%"), wide, initial_indent=first, subsequent_indent=later,
        break_on_hyphens=False,
    )  # fmt: skip
    print("\n".join(lines).replace("\0", " "))


def _print_tables(summary: Summary, terminal: Terminal, wide: int) -> None:
    """Print every cell: right answers, and the two shares that show how a memory works."""
    from attendre_core.evaluation.sweep.table import percent, shares, size_table, sizeless_line

    for write, title in (
        (percent, "Right answers in %, 95 % intervals"),
        (shares, "Share of new entries let in, share of a chunk's own there when it attends"),
    ):
        table = size_table(summary, write)
        if write is percent and table.strong:
            table, title = table.starred(), f"{title}; * the best of all systems and sizes"
        print(title)
        for waits in (False, True):
            columns = [j for j, head in enumerate(table.head) if j and head.endswith("/0") != waits]
            for piece in table.select(columns).pieces(wide):
                print(f"\nqueries {'wait for N tokens' if waits else 'attend at once'}")
                print(piece.plain(lambda text: terminal.paint(text, "green")))
        alone = sizeless_line(summary, write)
        print(f"\n{alone}\n" if alone else "")


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
