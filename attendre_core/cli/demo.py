"""``attendre demo``: tiny models read long inputs, to see which memory keeps the answer."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import Parser, add_command, add_shared, print_json, whole_number
from attendre_core.cli.terminal import Terminal
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.evaluation.grid import Grid, Measured
    from attendre_core.evaluation.picture import Panel
    from attendre_core.evaluation.tables import Table

__all__ = ["add_to"]

_DESCRIPTION = """\
Let a tiny model that ships with this package read inputs 8 to 32 times longer than its
chunk of 16 tokens, with memories of different policies and sizes, and count its right
answers. The question comes first; the answer is somewhere in a context of noise.

Prints a table in the shape of the paper's (a row for each size M of the memory and each
wait N of the queries, a column a policy) with 95 % intervals, says what it shows, and
draws it. NumPy is enough, nothing is downloaded, everything is computed while you wait."""

_EXAMPLES = """\
  attendre demo
  attendre demo --model encoder-decoder
  attendre demo --task past-only --answers single      a task that needs no look ahead
  attendre demo --sigmas paper                         the paper's initial scores
  attendre demo --policies MT LFA-0 LFA-1e-2 --documents 24
  attendre demo --backend torch --seed 7 --picture demo.svg
  attendre demo --json | python -m json.tool
  attendre demo --full --records full.jsonl            the whole grid; may be interrupted"""

#: Sizes of the whole grid, for chunks of 16: up to 8 chunks, and 16 for those without choice.
_FULL_SIZES = ((16, 0), (32, 0), (64, 0), (128, 0), (32, 16), (64, 32), (128, 64))


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "demo",
        "read long inputs with tiny models: which memory still knows the answer?",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    _add_reading(parser)
    parser.add_argument(
        "--policies", nargs="+", metavar="NAME",
        help="presets of 'attendre info', any LFA-<decay>, and the controls full, no-memory, "
        "closed-book, first-M, random, pinned (the paper's, and the controls)",
    )  # fmt: skip
    parser.add_argument(
        "--sigmas", nargs="+", type=_sigmas, metavar="C",
        help="new entries start C standard deviations below the mean stored score; 'paper' is "
        "what the paper used (0)",
    )  # fmt: skip
    parser.add_argument(
        "--picture", default="attendre-demo.svg", metavar="FILE",
        help="where the picture is written; of several tables each has its own, with the table "
        "in its name (attendre-demo.svg)",
    )  # fmt: skip
    parser.add_argument(
        "--records", metavar="FILE",
        help="write a line of JSON for each cell; what the file holds is not measured again",
    )  # fmt: skip
    add_shared(parser, backend_help="array library to compute with (numpy)")


def _add_reading(parser: Parser) -> None:
    parser.add_argument(
        "--full", action="store_true",
        help="both models, all tasks, all presets, more sizes and scores; takes hours",
    )  # fmt: skip
    parser.add_argument(
        "--model", nargs="+", choices=("prefix-lm", "encoder-decoder"), metavar="NAME",
        help="prefix-lm, encoder-decoder (prefix-lm)",
    )  # fmt: skip
    parser.add_argument(
        "--task", nargs="+", choices=("look-ahead", "past-only"), metavar="NAME",
        help="look-ahead: a value comes before its key; past-only: right after it (look-ahead)",
    )  # fmt: skip
    parser.add_argument(
        "--answers", nargs="+", choices=("repeat", "single"), metavar="NAME",
        help="repeat: the answer recurs; single: it stands in one place (repeat)",
    )  # fmt: skip
    parser.add_argument(
        "--documents", type=whole_number(1), metavar="COUNT", help="for each cell (40; full: 96)"
    )
    parser.add_argument("--seed", type=whole_number(0), default=0, help="which documents (0)")


def _sigmas(text: str) -> float | str:
    if text == "paper":
        return text
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not possible; give a number, or 'paper'")
    return number


def run(arguments: argparse.Namespace) -> None:
    """Measure, then print and draw."""
    from attendre_core.evaluation.resuming import measure_missing
    from attendre_core.evaluation.tables import tables_of

    grid = grid_of(arguments)
    file = None if arguments.records is None else Path(arguments.records).expanduser()
    tables = tables_of(measure_missing(file, grid.cells(), grid, "reading"))
    if arguments.json:
        print_json(as_json(grid, tables, _draw(tables, arguments.picture)))
        return
    terminal = Terminal()
    for table in tables:
        print_table(table, grid, terminal)
    # Last, so that a picture that cannot be written costs nothing else.
    print(_draw(tables, arguments.picture))


def grid_of(arguments: argparse.Namespace) -> Grid:
    """Return what the options ask for; every mistake is found before anything is measured."""
    from attendre_core.backend import backend
    from attendre_core.evaluation.grid import PAPER_SYSTEMS, Grid
    from attendre_core.evaluation.systems import CONTROLS, system
    from attendre_core.presets import PRESETS

    full = arguments.full
    for name in arguments.policies or ():
        system(name, 16)
    backend(arguments.backend)
    for option, file in (("picture", arguments.picture), ("records", arguments.records)):
        if file is not None and not Path(file).expanduser().parent.is_dir():
            raise ConfigError(
                f"demo: there is no folder for the {option} {file}. Make it, or give another file "
                f"with --{option}."
            )
        if file is not None and Path(file).expanduser().is_dir():
            raise ConfigError(
                f"demo: the {option} cannot be written to {file}, which is a folder. Give a file "
                f"with --{option}."
            )
    return Grid(
        models=arguments.model or (("prefix-lm", "encoder-decoder") if full else ("prefix-lm",)),
        tasks=arguments.task or (("look-ahead", "past-only") if full else ("look-ahead",)),
        answers=arguments.answers or (("repeat", "single") if full else ("repeat",)),
        systems=arguments.policies
        or (*(PRESETS if full else (*PAPER_SYSTEMS, "attendre")), *CONTROLS),
        sizes=_FULL_SIZES if full else Grid().sizes,
        sigmas=arguments.sigmas or ((-1.0, 0.0, 1.0, "paper") if full else (0.0,)),
        documents=arguments.documents or (96 if full else Grid().documents),
        seed=arguments.seed,
        backend=arguments.backend,
    )


def as_json(grid: Grid, tables: Sequence[Table], drawn: str) -> dict[str, Any]:
    """Return everything that the tables show."""
    from attendre_core.evaluation.reading import sentences

    return {
        "command": "demo",
        "settings": {
            name: getattr(grid, name) for name in ("documents", "seed", "chunk", "top_k", "backend")
        },
        "picture": drawn,
        "tables": [
            {
                **dict(zip(("model", "task", "answers", "sigmas"), table.heading, strict=True)),
                "cells": [_cell_json(m) for m in table.measured],
                "reading": sentences(table.measured, grid.chunk),
            }
            for table in tables
        ],
    }


def _cell_json(measured: Measured) -> dict[str, Any]:
    cell, accuracy = measured.cell, measured.accuracy
    return {
        "policy": cell.system,
        "kv_size": cell.kv_size,
        "q_size": cell.q_size,
        "right": int(measured.outcome.right.sum()),
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "admitted": round(float(measured.outcome.admitted.mean()), 4),
        "present": round(float(measured.outcome.present.mean()), 4),
    }


def print_table(table: Table, grid: Grid, terminal: Terminal) -> None:
    """Print right answers, what was let in and what was still there, and sentences."""
    from attendre_core.evaluation.reading import admission, sentences
    from attendre_core.evaluation.tables import with_interval, with_shares

    wide = max(60, min(terminal.columns, 100))
    print(terminal.paint(table.title, "bold"))
    print(
        f"right answers in %, 95 % intervals; {grid.documents} documents of 128 to 512 tokens, "
        f"chunks of {grid.chunk}, top {grid.top_k}, seed {grid.seed}\n"
    )
    for block in table.blocks(with_interval, wide, lambda text: terminal.paint(text, "green")):
        print("\n".join(block) + "\n")
    print("share of new entries let in, share of a chunk's own entries there when it attends\n")
    for block in table.blocks(with_shares, wide):
        print("\n".join(block) + "\n")
    found = sentences(table.measured, grid.chunk)
    more = admission(table.measured)
    for sentence in found if more is None else [*found, more]:
        # A figure and its unit stay on one line.
        kept = sentence.replace(" %", "\0%")
        text = textwrap.fill(kept, wide, initial_indent="- ", subsequent_indent="  ")
        print(text.replace("\0", " "))
    print()


def _draw(tables: Sequence[Table], path: str) -> str:
    """Write a picture of each table; returns where they are, or why there is none."""
    from attendre_core.evaluation.picture import chart

    written = []
    for table in tables:
        panels = _panels(table)
        if not panels:
            continue
        file = Path(path) if len(tables) == 1 else _named(Path(path), table)
        try:
            file.expanduser().write_text(
                chart(f"Right answers: {table.title}", panels), encoding="utf-8"
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


def _named(path: Path, table: Table) -> Path:
    """Return the file of one of several tables: the name says which."""
    *place, c = table.heading
    words = "-".join([path.stem, *place]) + ("" if c is None else f"-c-{c}")
    return path.with_name(words + path.suffix)


def _panels(table: Table) -> list[Panel]:
    from attendre_core.evaluation.picture import Line, Panel

    panels = []
    for waiting, title in (
        (False, "queries attend at once (N = 0)"),
        (True, "queries wait (N > 0)"),
    ):
        sizes = [size for size in table.sizes if (size[1] > 0) == waiting]
        lines = []
        for name in table.systems:
            found = [(kv, m.accuracy) for kv, q in sizes if (m := table.at(name, kv, q))]
            if found:
                lines.append(Line(name, found))
        if lines:
            panels.append(Panel(title, "M, entries of a memory", lines))
    return panels
