"""An argument parser with one-line errors, and a checked integer type, for commands and scripts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

__all__ = ["Parser", "whole_number"]


class Parser(argparse.ArgumentParser):
    """An argument parser that keeps line breaks in its help and prints errors on one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Print what was wrong and how to get help, on one line, and exit with code 2."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def whole_number(least: int) -> Callable[[str], int]:
    """Return an argument type that accepts whole numbers from ``least`` on."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(
                f"invalid value: {text!r} (expected a whole number, {least} or more)"
            )
        return number

    return parse
