"""``attendre bench``: what a step costs, as ratios to references that ran beside it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from attendre_core.cli.arguments import add_command, print_json, whole_number
from attendre_core.errors import ConfigError

__all__ = ["add_to"]

_DESCRIPTION = """\
Measure what memories cost. Every figure is a ratio to a reference that ran in turns with it
in the same process, so a busy machine spoils little; the quartiles show how much.

Peers (transformers, memorizing-transformers-pytorch) are measured where they are installed,
and otherwise skipped with a message."""

_EXAMPLES = """\
  attendre bench --quick
  attendre bench --backend torch --row 1 2
  attendre bench --out bench.md --json"""


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "bench",
        "measure what a step costs, as ratios to references",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats, shorter streams, no models"
    )
    parser.add_argument(
        "--row", nargs="+", type=whole_number(1), default=[], metavar="N", help="only these rows"
    )
    parser.add_argument("--out", metavar="FILE", help="also write the table, in Markdown")
    parser.add_argument(
        "--backend",
        nargs="+",
        default=["torch", "jax"],
        metavar="NAME",
        help="libraries to measure (torch jax)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def run(arguments: argparse.Namespace) -> None:
    """Run the command."""
    from attendre_core.benchmark import markdown, measure_all

    for name in arguments.backend:
        if name not in ("torch", "jax"):
            raise ConfigError(f"bench: backend is {name!r}, expected torch or jax.")

    def say(text: str) -> None:
        if sys.stderr.isatty():
            print(f"measuring {text} ...", file=sys.stderr)

    figures = []
    for figure in measure_all(
        tuple(arguments.backend), quick=arguments.quick, rows=tuple(arguments.row), say=say
    ):
        figures.append(figure)
        if not arguments.json:
            print(markdown([figure]).splitlines()[2], flush=True)
    if arguments.out:
        Path(arguments.out).write_text(markdown(figures), encoding="utf-8")
    if arguments.json:
        rows = [{**dataclasses.asdict(f), "verdict": f.verdict} for f in figures]
        print_json({"figures": rows})
