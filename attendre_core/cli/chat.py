"""``attendre chat``: talk with a model, also about a file, in bounded memory."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attendre_core.cli.arguments import (
    MEMORY_HELP,
    add_command,
    add_memory,
    add_tokenizer,
    add_writing,
)
from attendre_core.cli.terminal import Terminal, standard_input
from attendre_core.errors import ConfigError, StateError
from attendre_core.paths import user_path

if TYPE_CHECKING:
    from attendre_core.zoo.answer import Answer
    from attendre_core.zoo.chat import Chat
    from attendre_core.zoo.model import Model

__all__ = ["add_to"]

_DESCRIPTION = f"""\
Talk with a model in the format that it was trained on (its own chat template), in a memory of
fixed size. With --file it reads a text of any length first, and you ask about it.

On a terminal, answers appear while they are written. Ctrl-C stops an answer, Ctrl-D or /exit
ends the program, /save FILE saves the conversation, /reset forgets all but the file.
If standard input is not a terminal, each line of it is a message.

{MEMORY_HELP}"""

_EXAMPLES = """\
  attendre chat --model model.gguf
  attendre chat --model model.gguf --file book.txt --memory 2048
  attendre chat --model SmolLM2-135M --system "Answer in one sentence." --pin-system
  attendre chat --model model.gguf --backend torch --temperature 0.7 --seed 1
  attendre chat --model model.gguf --restore talk.safetensors
  echo "Who is Pierre?" | attendre chat --model model.gguf --file book.txt --json"""

_COMMANDS = ("/exit", "/help", "/quit", "/reset", "/save")
_HELP = "/save FILE, /reset, /exit; Ctrl-C stops an answer"


def add_to(commands: Any) -> None:
    """Add this command to the command line."""
    parser = add_command(
        commands,
        "chat",
        "talk with a model, also about a long file",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
        run=run,
    )
    parser.add_argument("--model", required=True, metavar="PATH", help="the checkpoint")
    add_tokenizer(parser)
    parser.add_argument("--file", metavar="FILE", help="a text to read first")
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    parser.add_argument(
        "--pin-system", action="store_true", help="never evict the system message from the memory"
    )
    parser.add_argument(
        "--template", metavar="FILE",
        help="a file with a chat template, for a model that came without one",
    )  # fmt: skip
    add_memory(
        parser,
        "1024",
        "a name as above, a size for the system recommended for the model, or 'full' for "
        "full attention without a limit (1024)",
    )
    add_writing(parser, 256)
    parser.add_argument(
        "--dtype", default="float32", help="float32, float16, bfloat16 or auto (float32)"
    )
    parser.add_argument("--restore", metavar="FILE", help="continue a conversation from /save")
    parser.add_argument(
        "--backend", default="numpy", metavar="NAME", help="array library to compute with (numpy)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line and message"
    )


def run(arguments: argparse.Namespace) -> None:
    """Read the file, then answer every message until the input ends."""
    from attendre_core.zoo import load

    document = None if arguments.file is None else _contents("file", arguments.file)
    template = None if arguments.template is None else _contents("template", arguments.template)
    model = load(
        arguments.model, memory=arguments.memory, backend=arguments.backend, dtype=arguments.dtype,
        tokenizer=arguments.tokenizer,
    )  # fmt: skip
    chat = _started(arguments, model, template)
    if document is not None:
        chat.read(document, progress=None)
    talk = _Talk(arguments, chat)
    talk.greet()
    for message in _messages(sys.stdin.isatty()):
        if not talk.hear(message):
            break


def _started(arguments: argparse.Namespace, model: Model, template: str | None) -> Chat:
    if arguments.restore is not None:
        given = ("system", "pin_system", "template")
        for name in (n for n in given if getattr(arguments, n)):
            raise ConfigError(
                f"chat: --{name.replace('_', '-')} does not go with --restore: a saved "
                "conversation has its own."
            )
        return model.restore_chat(user_path(arguments.restore))
    try:
        return model.chat(arguments.system, pin_system=arguments.pin_system, template=template)
    except ConfigError as error:
        if "no chat template" not in str(error):
            raise
        raise ConfigError(
            f"chat: {arguments.model} has no chat template. Was it trained to chat? If so, give "
            "the file of its template with --template; if not, use 'attendre run'."
        ) from error


def _contents(option: str, path: str) -> str:
    try:
        return user_path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"chat: --{option} {path} cannot be read ({error.strerror}).") from error


def _messages(terminal: bool) -> Iterator[str]:
    """Yield lines until the input ends."""
    if not terminal:
        for line in standard_input():
            yield line.strip()
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history in input)
    while True:
        try:
            yield input("> ").strip()
        except KeyboardInterrupt:
            print(f"\n({_HELP})", file=sys.stderr)
        except EOFError:
            print()
            return


class _Talk:
    """Answers messages on standard output.

    Parameters
    ----------
    chat
        After reading the file.
    """

    def __init__(self, arguments: argparse.Namespace, chat: Chat) -> None:
        self._arguments, self._chat = arguments, chat
        self._terminal = sys.stdin.isatty()
        # Copied only where somebody can ask for it.
        self._first = chat.fork() if self._terminal else None

    def greet(self) -> None:
        """Say what was read and what can be typed."""
        if self._terminal:
            memory = self._chat.model.memory
            name = "full attention" if memory is None else f"memory {memory.name}"
            line = f"{self._chat.stream.lengths[0]:,} tokens read, {name}. {_HELP}"
            print(Terminal(sys.stderr).paint(line, "dim"), file=sys.stderr)

    def hear(self, message: str) -> bool:
        """Answer a message or follow a command; False ends the conversation."""
        command, _, rest = message.partition(" ")
        if command in _COMMANDS:
            return self._follow(command, rest.strip())
        if message:
            self._answer(message)
        return True

    def _follow(self, command: str, rest: str) -> bool:
        if command in ("/exit", "/quit"):
            return False
        told = _HELP
        if command == "/reset" and self._first is not None:
            self._chat = self._first.fork()
            told = "started again"
        elif command == "/save" and rest:
            try:
                self._chat.save(rest)
                told = f"saved in {rest}; continue with --restore {rest}"
            except StateError as error:
                if not self._terminal:
                    raise
                told = str(error)
        print(Terminal(sys.stderr).paint(told, "dim"), file=sys.stderr)
        return True

    def _answer(self, message: str) -> None:
        given = self._arguments
        answer = self._chat.send(
            message, given.max_new_tokens, temperature=given.temperature, top_p=given.top_p,
            seed=given.seed, stop=given.stop,
        )  # fmt: skip
        try:
            self._show(answer)
        except KeyboardInterrupt:
            if not self._terminal:
                raise
            answer.stop()
        if given.json:
            told = {
                "message": message, "answer": answer.so_far, "new_tokens": len(answer.tokens),
                "tokens_read": self._chat.stream.lengths[0],
            }  # fmt: skip
            print(json.dumps(told), flush=True)
        else:
            print(flush=True)

    def _show(self, answer: Answer) -> None:
        for piece in answer:
            if not self._arguments.json:
                sys.stdout.write(piece)
                sys.stdout.flush()
