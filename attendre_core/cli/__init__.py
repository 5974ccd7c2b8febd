"""The command line: ``attendre COMMAND``, one module per command.

Nothing here imports an array library that the user did not ask for with ``--backend``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from attendre_core.cli import bench, chat, completion, demo, embed, info, run, tag, trace
from attendre_core.cli import eval as evaluation
from attendre_core.cli.arguments import Parser
from attendre_core.cli.terminal import harmless_streams
from attendre_core.errors import CheckpointError, ConfigError, NonFiniteError, StateError

__all__ = ["main"]

_COMMANDS = (demo, run, chat, tag, embed, evaluation, trace, bench, info)
#: Exit codes as shells report them after Ctrl-C, and after the reader of a pipe closed it.
_INTERRUPTED, _BROKEN_PIPE = 130, 141


def build_parser() -> Parser:
    """Return the parser of the whole command line."""
    parser = Parser(
        prog="attendre",
        description="Bounded memories with eviction policies for transformers over long input.",
        epilog="'attendre COMMAND --help' explains a command and shows examples.",
    )
    version = f"attendre-core {info.versions()['attendre-core']}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in _COMMANDS:
        command.add_to(commands)
    completion.add_to(commands, parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Parameters
    ----------
    argv
        The words after ``attendre``; by default those of ``sys.argv``.

    Returns
    -------
    int
        0 on success, 2 after an error (wrong settings, a checkpoint or a state that cannot be
        read, a file that cannot be written), 130 after Ctrl-C, 141 if the reader of stdout closed
        it. Arguments that cannot be parsed raise SystemExit(2).
    """
    with harmless_streams():
        return _main(argv)


def _main(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    if "" not in sys.path:
        # For my_module:MyPolicy in the current folder. Last, so that it hides no installed module.
        sys.path.append("")
    try:
        arguments = parser.parse_args(argv)
        if not hasattr(arguments, "run"):
            parser.print_help()
            return 0
        arguments.run(arguments)
        sys.stdout.flush()
    except (CheckpointError, ConfigError, NonFiniteError, StateError) as error:
        print(f"attendre: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has closed the pipe.
        _drop_output()
        return _BROKEN_PIPE
    except OSError as error:
        # A file that went away, a full disk, a name too long: whatever no command has expected.
        file = "" if error.filename is None else f"{error.filename}: "
        print(f"attendre: error: {file}{error.strerror or error}", file=sys.stderr)
        _drop_output()
        return 2
    return 0


def _drop_output() -> None:
    """Let what is left for stdout go to /dev/null: Python writes it on shutdown, and would fail."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:  # stdout is no file
        return
