"""What every command's arguments share: short errors, examples in the help, checked numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from attendre_core.presets import MemoryConfig, preset

__all__ = [
    "Parser",
    "add_command",
    "add_memory",
    "add_shared",
    "memory_of",
    "print_json",
    "whole_number",
]


class Parser(argparse.ArgumentParser):
    """An argument parser that keeps line breaks in the help and errors to one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Print one line that says what was wrong and where help is; exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def add_command(
    commands: Any,
    name: str,
    summary: str,
    *,
    description: str,
    examples: str,
    run: Callable[[argparse.Namespace], None],
) -> Parser:
    """Add a command; its help ends with examples that can be pasted into a shell."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=description, epilog=f"examples:\n{examples}"
    )
    parser.set_defaults(run=run)
    return parser


def add_shared(parser: Parser, *, backend_help: str) -> None:
    """Add the options that all commands have."""
    parser.add_argument("--backend", default="numpy", metavar="NAME", help=backend_help)
    parser.add_argument("--json", action="store_true", help="print one JSON object, for programs")


def add_memory(parser: Parser) -> None:
    """Add the options that describe a memory; `memory_of` reads them."""
    memory = parser.add_argument_group("the memory")
    memory.add_argument(
        "--preset", default="LRA-sum", metavar="NAME", help="policy: see attendre info (LRA-sum)"
    )
    memory.add_argument(
        "--kv", type=whole_number(1), default=1024, metavar="M", help="keys and values kept (1024)"
    )
    memory.add_argument(
        "--q", type=whole_number(0), default=0, metavar="N", help="positions queries wait (0)"
    )
    memory.add_argument(
        "--chunk", type=whole_number(1), default=128, metavar="S", help="tokens per step (128)"
    )
    memory.add_argument(
        "--top-k", type=whole_number(1), metavar="K", help="entries a query retrieves (all)"
    )
    memory.add_argument(
        "--sigmas",
        type=float,
        default=0.0,
        metavar="C",
        help="new entries start C deviations below the mean score (0; the paper's 1 lets few in)",
    )
    memory.add_argument(
        "--present",
        choices=("compete", "visible"),
        help="whether a chunk may be refused before it is attended to",
    )
    memory.add_argument(
        "--positions",
        choices=("clamp", "model", "in-cache"),
        default="clamp",
        help="beyond the length that the model was trained on (clamp)",
    )


def memory_of(arguments: argparse.Namespace) -> MemoryConfig:
    """Make the memory that the options of `add_memory` describe."""
    config = preset(
        arguments.preset,
        arguments.kv,
        arguments.q,
        arguments.chunk,
        arguments.top_k,
        sigmas=arguments.sigmas,
    )
    config = replace(config, positions=arguments.positions)
    return config if arguments.present is None else replace(config, present=arguments.present)


def whole_number(least: int) -> Callable[[str], int]:
    """Return an argument type: a whole number, ``least`` or more."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not possible; give a whole number, {least} or more"
            )
        return number

    return parse


def print_json(answer: dict[str, Any]) -> None:
    """Print the answer as JSON, the same on every terminal."""
    json.dump(answer, sys.stdout, indent=2)
    sys.stdout.write("\n")
