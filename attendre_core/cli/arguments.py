"""What every command's arguments share: short errors, examples in the help, checked numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["Parser", "add_command", "add_shared", "print_json", "whole_number"]


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
