"""Helpers for the arguments of all commands: examples in the help, backends, memories, lists."""

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
    "add_tokenizer",
    "add_writing",
    "one_of",
    "print_json",
    "whole_number",
]

#: How memories are named, for the descriptions of commands.
MEMORY_HELP = """\
A memory is NAME[+option...][:size], the same in Python and in every command:
  attendre-causal:1024           recommended for causal models; 1024 entries per layer
  attendre:64MiB                 recommended for models that look both ways; 64 MiB in total
  LRA-sum+softmax+c=0:512        a system of the paper, with options
  my_module:MyPolicy:1024        your own policy, in my_module.py in the current folder
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
    """Add a command whose help ends with examples that can be pasted into a shell."""
    parser: Parser = commands.add_parser(
        name, help=summary, description=description, epilog=f"examples:\n{examples}"
    )
    parser.set_defaults(run=run)
    return parser


def add_shared(
    parser: Parser,
    *,
    backend_help: str,
    json_help: str = "print one JSON object, for programs",
) -> None:
    """Add ``--backend`` and ``--json``."""
    parser.add_argument("--backend", default="numpy", metavar="NAME", help=backend_help)
    parser.add_argument("--json", action="store_true", help=json_help)


def add_tokenizer(parser: Any) -> None:
    """Add ``--tokenizer``, for checkpoints that came without one."""
    parser.add_argument(
        "--tokenizer", metavar="PATH",
        help="a tokenizer file, or a folder or .gguf file that has one (the checkpoint's own)",
    )  # fmt: skip


def add_writing(parser: Any, most: int) -> Any:
    """Add how tokens are generated, at most ``most`` by default; return the group."""
    group = parser.add_argument_group("generation")
    group.add_argument(
        "--max-new-tokens", type=whole_number(1), default=most, metavar="T",
        help=f"generate at most T tokens ({most})",
    )  # fmt: skip
    group.add_argument(
        "--temperature", type=float, default=0.0,
        help="sampling temperature; 0 takes the likeliest token (0)",
    )  # fmt: skip
    group.add_argument(
        "--top-p", type=float, default=1.0, help="probability mass to sample from (1)"
    )
    group.add_argument("--seed", type=whole_number(0), default=0, help="seed for sampling (0)")
    group.add_argument(
        "--stop", action="append", default=[], metavar="TEXT",
        help="stop before this text; may be repeated",
    )  # fmt: skip
    return group


def add_memory(parser: Any, default: str | None, words: str) -> None:
    """Add ``--memory``, a text for `attendre_core.presets.memory_for`."""
    parser.add_argument("--memory", default=default, metavar="MEMORY", help=words)


def add_list(parser: Any, flag: str, each: Callable[[str], Any] = str, **options: Any) -> None:
    """Add an option that takes several words, separated by commas or spaces."""

    def parse(text: str) -> list[Any]:
        return [each(word.strip()) for word in text.split(",") if word.strip()]

    parser.add_argument(flag, nargs="+", type=parse, action=_Joined, **options)


class _Joined(argparse.Action):
    """Join the lists that the words of an option were parsed into."""

    def __call__(
        self, parser: object, namespace: object, values: Any, option_string: str | None = None
    ) -> None:
        """Store the joined list."""
        joined = [word for words in values for word in words]
        if not joined:
            raise argparse.ArgumentError(self, "the list is empty; separate words by commas")
        setattr(namespace, self.dest, joined)


def one_of(*words: str) -> Callable[[str], str]:
    """Return an argument type that accepts only these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(
                f"invalid choice: {text!r} (choose from {', '.join(words)})"
            )
        return text

    return parse


def print_json(answer: dict[str, Any]) -> None:
    """Print an answer as indented JSON in ASCII, whatever the terminal can show."""
    json.dump(answer, sys.stdout, indent=2)
    sys.stdout.write("\n")
