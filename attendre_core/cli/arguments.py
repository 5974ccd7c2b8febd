"""What the arguments of all commands share: examples in the help, backends, memories."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from attendre_core.arguments import Parser, whole_number

__all__ = [
    "MEMORY_HELP",
    "Parser",
    "add_command",
    "add_list",
    "add_memory",
    "add_shared",
    "one_of",
    "print_json",
    "whole_number",
]

#: For descriptions: how memories are named.
MEMORY_HELP = """\
A memory is NAME[+option...][:size], the same in Python and in every command:
  attendre-causal:1024           what we recommend for causal models, 1024 entries per layer
  attendre:64MiB                 for models that look both ways, 64 MiB for all layers
  LRA-sum+softmax+c=0:512        a system of the paper, with options
  my_module:MyPolicy:1024        a policy of yours, my_module.py in the current folder
'attendre info' lists all names and options."""


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


def add_memory(parser: Any, default: str | None, words: str) -> None:
    """Add ``--memory``; `attendre_core.presets.memory_for` reads it."""
    parser.add_argument("--memory", default=default, metavar="MEMORY", help=words)


def add_list(parser: Any, flag: str, each: Callable[[str], Any] = str, **options: Any) -> None:
    """Add an option that takes several words, separated by commas or spaces."""

    def parse(text: str) -> list[Any]:
        return [each(word.strip()) for word in text.split(",") if word.strip()]

    parser.add_argument(flag, nargs="+", type=parse, action=_Joined, **options)


class _Joined(argparse.Action):
    """Join the lists of an option's words into one."""

    def __call__(
        self, parser: object, namespace: object, values: Any, option_string: str | None = None
    ) -> None:
        """Store the list."""
        found = [word for words in values for word in words]
        if not found:
            raise argparse.ArgumentError(self, "nothing is given; separate words by commas")
        setattr(namespace, self.dest, found)


def one_of(*words: str) -> Callable[[str], str]:
    """Return an argument type: one of some words."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {', '.join(words)})"
            )
        return text

    return parse


def print_json(answer: dict[str, Any]) -> None:
    """Print the answer as JSON, the same on every terminal."""
    json.dump(answer, sys.stdout, indent=2)
    sys.stdout.write("\n")
