"""An argument parser with one-line errors, and a checked integer type, for commands and scripts."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any, NoReturn

__all__ = ["Parser", "whole_number"]


class _Help(argparse.HelpFormatter):
    """Fit descriptions to the terminal: fill paragraphs, and keep indented lines apart."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for filled, group in groupby(text.splitlines(), lambda line: line[:1].strip() != ""):
            if filled:
                lines += self._split_lines(" ".join(group), width)
            else:
                lines += [part for line in group for part in _fitted(line, width)]
        return "\n".join(indent + line for line in lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Names of memories and options have hyphens; none of them is a place to break.
        return textwrap.wrap(
            " ".join(text.split()), width, break_long_words=False, break_on_hyphens=False
        )


def _fitted(line: str, width: int) -> Iterator[str]:
    """Break an indented line: a command at its words, a row of two columns in the second."""
    if len(line) <= width:
        yield line
        return
    columns = re.fullmatch(r"(\s+\S.*?\s{2,})(\S.*)", line)
    if columns:
        first, rest = columns.groups()
        yield from textwrap.wrap(
            rest, width, initial_indent=first, subsequent_indent=" " * len(first),
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        return
    row = line[: len(line) - len(line.lstrip())]
    # An option stays with its value.
    words = r"""--\S+ (?:"[^"]*"|[^\s"-]\S*)|(?:"[^"]*"|\S)+"""
    for word in re.findall(words, line.removesuffix(" \\")):
        # Two columns are left for the backslash.
        if len(row) + len(word) + 1 > width - 2:
            yield f"{row} \\"
            row = " " * 6 + word
        else:
            row = f"{row} {word}" if row.strip() else row + word
    yield f"{row} \\" if line.endswith("\\") else row


class Parser(argparse.ArgumentParser):
    """An argument parser whose help fits the terminal, with errors on one line."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Help)
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
