"""What ``attendre demo`` shows: tables, sentences, pictures, JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.evaluation.sweep import Measured, Summary
    from attendre_core.evaluation.tasks import SyntheticTask

__all__ = ["CHUNK", "TOP_K", "Found", "as_json", "draw", "print_found"]

#: Chunk S and top K of the tiny models.
CHUNK, TOP_K = 16, 16


class Found(NamedTuple):
    """What was measured with one model on one task."""

    model: str
    task: SyntheticTask
    measured: list[Measured]
    summary: Summary

    @property
    def title(self) -> str:
        """Model, task and answers."""
        return f"{self.model}, {self.task.name}, {self.task.answers}"


def as_json(found: Sequence[Found], backend: str, drawn: str) -> dict[str, Any]:
    """Return everything that the tables show."""
    from attendre_core.evaluation.sweep.findings import findings

    return {
        "command": "demo",
        "settings": {
            "documents": found[0].task.limit, "seed": found[0].task.seed, "chunk": CHUNK,
            "top_k": TOP_K, "backend": backend,
        },
        "picture": drawn,
        "tables": [
            {
                "model": one.model,
                "task": one.task.name,
                "answers": one.task.answers,
                "rows": [row.plain() for row in one.summary.rows],
                "findings": findings(one.measured, CHUNK),
            }
            for one in found
        ],
    }  # fmt: skip


def print_found(found: Found, terminal: Terminal) -> None:
    """Print right answers, what was let in and what was still there, and sentences."""
    from attendre_core.evaluation.sweep.findings import findings
    from attendre_core.evaluation.sweep.table import percent, shares, size_table, sizeless_line

    wide = max(60, min(terminal.columns, 100))
    print(terminal.paint(found.title, "bold"))
    print(
        f"right answers in %, 95 % intervals; {found.task.limit} documents of {8 * CHUNK} to "
        f"{32 * CHUNK} tokens, chunks of {CHUNK}, top {TOP_K}, seed {found.task.seed}\n"
        "M: entries per memory; N: positions that queries wait\n"
    )
    table = size_table(found.summary, percent)
    _print_blocks(
        table.plain(lambda text: terminal.paint(text, "green")) if table.rows else "",
        sizeless_line(found.summary, percent),
        "share of new entries let in, share of a chunk's own entries there when it attends",
        size_table(found.summary, shares).plain() if table.rows else "",
        sizeless_line(found.summary, shares),
    )
    for sentence in findings(found.measured, CHUNK):
        # A figure and its unit stay on one line.
        kept = sentence.replace(" %", "\0%")
        text = textwrap.fill(
            kept, wide, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
        )
        print(text.replace("\0", " "))
    print()


def _print_blocks(*texts: str) -> None:
    for text in texts:
        if text:
            print(text + "\n")


def draw(found: Sequence[Found], path: str) -> str:
    """Write a picture per table; returns where they are, or why there is none."""
    from attendre_core.evaluation.sweep.charts import score_panels
    from attendre_core.evaluation.sweep.svg import chart

    written = []
    for one in found:
        panels = score_panels(one.summary)
        if not panels:
            continue
        file = Path(path)
        if len(found) > 1:
            words = "-".join([file.stem, one.model, one.task.name, one.task.answers])
            file = file.with_name(words + file.suffix)
        try:
            file.expanduser().write_text(
                chart(f"Right answers: {one.title}", panels), encoding="utf-8"
            )
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
