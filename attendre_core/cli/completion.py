"""``attendre completion``: a script with which a shell completes commands, options and names."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from attendre_core.arguments import Parser
from attendre_core.backend import available_backends
from attendre_core.cli.arguments import add_command
from attendre_core.presets import CONTROL_PRESETS, PRESETS

__all__ = ["add_to"]

_DESCRIPTION = """\
Print a script that lets a shell complete commands, options, and the names of memories and
array libraries with the tab key; everything else is completed as a file. Make it again after an
update."""

_EXAMPLES = """\
  attendre completion bash > ~/.local/share/bash-completion/completions/attendre
  attendre completion zsh >> ~/.zshrc
  attendre completion fish > ~/.config/fish/completions/attendre.fish"""


class _Offered(NamedTuple):
    """What can follow a command: words of its own, and the values of its options.

    ``values`` is None for an option that takes none, and empty for one that takes anything.
    """

    command: str
    words: list[str]
    options: dict[str, tuple[str, list[str] | None]]


def add_to(commands: Any, whole: Parser) -> None:
    """Add this command to the command line, whose parser is ``whole``."""
    parser = add_command(
        commands,
        "completion",
        "print a script for bash, zsh or fish that completes with the tab key",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=lambda arguments: print(_SHELLS[arguments.shell](list(_offers(whole))), end=""),
    )
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SHELLS), help="bash, zsh or fish")


def _offers(whole: argparse.ArgumentParser, command: str = "") -> Iterator[_Offered]:
    """Walk through a parser and those of its commands."""
    words: list[str] = []
    options: dict[str, tuple[str, list[str] | None]] = {}
    deeper: list[tuple[str, argparse.ArgumentParser]] = []
    for action in whole._actions:
        values = [str(choice) for choice in action.choices or ()]
        if isinstance(action, argparse._SubParsersAction):
            deeper += action.choices.items()
        if not action.option_strings:
            words += values
        names = {"backend": sorted(available_backends()), "memory": _memories()}
        for option in action.option_strings:
            known = names.get({"policies": "memory"}.get(action.dest, action.dest), values)
            options[option] = (action.help or "", None if action.nargs == 0 else known)
    yield _Offered(command, words, options)
    for name, parser in deeper:
        yield from _offers(parser, name)


def _memories() -> list[str]:
    return [*PRESETS, *CONTROL_PRESETS, "full"]


def _bash(offers: list[_Offered]) -> str:
    commands, values, words = [], [], []
    for command, own, options in offers:
        if command:
            commands.append(command)
        words.append(f"        {shlex.quote(command)}) words={shlex.quote(_line(own, options))} ;;")
        for option, (_, known) in options.items():
            if known is not None:
                quoted = shlex.quote(f"{command} {option}")
                values.append(f"        {quoted}) words={shlex.quote(' '.join(known))} ;;")
    lines = "\n".join
    return f"""\
_attendre() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="" words="" before_comma="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in
        {"|".join(map(shlex.quote, commands))}) command="${{COMP_WORDS[i]}}"; break ;;
        esac
    done
    case "$command $before" in
{lines(values)}
    *)
        case "$command" in
{lines(words)}
        esac ;;
    esac
    case "$word" in
    *,*) before_comma="${{word%,*}}," ;;
    esac
    COMPREPLY=($(compgen -P "$before_comma" -W "$words" -- "${{word##*,}}"))
}}
complete -o default -F _attendre attendre
"""


def _line(words: list[str], options: dict[str, Any]) -> str:
    return " ".join([*words, *options])


def _zsh(offers: list[_Offered]) -> str:
    """Let zsh read what bash does."""
    return f"autoload -U +X compinit bashcompinit && compinit && bashcompinit\n{_bash(offers)}"


def _fish(offers: list[_Offered]) -> str:
    lines = []
    commands = " ".join(offer.command for offer in offers if offer.command)
    for command, words, options in offers:
        seen = f"__fish_seen_subcommand_from {command or commands}"
        start = f"complete -c attendre -n {shlex.quote(seen if command else f'not {seen}')}"
        if words:
            only = "" if command else " -f"
            lines.append(f"{start}{only} -a {shlex.quote(' '.join(words))}")
        for option, (help_, known) in options.items():
            kind = "-l" if option.startswith("--") else "-s"
            takes = "" if known is None else " -r"
            if known:
                takes = f" -x -a {shlex.quote(' '.join(known))}"
            told = help_.partition(";")[0].replace("%%", "%").replace("\\", "").replace("'", "")
            lines.append(f"{start} {kind} {option.lstrip('-')}{takes} -d '{told}'")
    return "\n".join(lines) + "\n"


_SHELLS: dict[str, Callable[[list[_Offered]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
