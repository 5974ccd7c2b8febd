"""The tasks of ``attendre eval``, and how command-line options become a task."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.arguments import Parser, whole_number
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.evaluation.tasks import ContextRule, Task

__all__ = ["TASKS", "TaskOptions", "add_task", "task_of"]

#: The options that only some tasks use, with their defaults.
DEFAULTS: dict[str, Any] = {
    "data": "", "evidence": None, "limit": None, "context_tokens": None, "depth": None, "gold": 1,
    "keys": 40, "new_tokens": 16, "streams": 1, "skip": 0, "reading": "look-ahead",
    "answers": "repeat", "seed": 0, "template": None, "chat": False,
}  # fmt: skip


class TaskOptions(NamedTuple):
    """A task on the command line.

    Attributes
    ----------
    words
        One line for the help.
    make
        Makes the task from the arguments and the chunk.
    uses
        The options of `DEFAULTS` that it uses; any other is refused.
    chunk, top_k
        Default S and K.
    needs
        What ``--data`` must be, for the error if it is missing; empty if it is optional.
    """

    words: str
    make: Callable[[argparse.Namespace, int], Task]
    uses: tuple[str, ...]
    chunk: int = 128
    top_k: int = 128
    needs: str = ""


def add_task(parser: Parser) -> None:
    """Add the options of all tasks; `task_of` reads them."""
    task = parser.add_argument_group("the task; options that a task does not use are refused")

    def add(name: str, words: str, **more: Any) -> None:
        task.add_argument(name, help=words, default=DEFAULTS[name[2:].replace("-", "_")], **more)

    count, any_number = {"metavar": "COUNT", "type": whole_number(1)}, whole_number(0)
    add("--data", "file with questions, records or a text", metavar="FILE")
    add("--template", "qa: the prompt, with {question} and {context} in it (the paper's)",
        metavar="TEXT")  # fmt: skip
    add("--chat", "qa: wrap the prompt in the model's own chat template", action="store_true")
    add("--evidence", "triviaqa: folder with wikipedia/ and web/", metavar="FOLDER")
    add("--limit", "use at most this many items", **count)
    add("--context-tokens", "length of a context or text", metavar="T", type=whole_number(1))
    add("--depth", "place of the answer, 0 (start) to 1 (end) (anywhere)", metavar="SHARE",
        type=float)  # fmt: skip
    add("--gold", "triviaqa: passages with the answer in a built context (1)", **count)
    add("--keys", "multi-key: records per context (40)", metavar="COUNT", type=whole_number(2))
    add("--new-tokens", "tokens to generate; 0 measures only the answer's likelihood (16)",
        metavar="COUNT", type=any_number)  # fmt: skip
    add("--streams", "perplexity: texts read side by side (1)", **count)
    add("--skip", "characters to skip at the beginning of a text (0)", metavar="COUNT",
        type=any_number)  # fmt: skip
    add("--reading", "synthetic: which task (look-ahead)", choices=("look-ahead", "past-only"))
    add("--answers", "synthetic: answers that recur or occur once (repeat)",
        choices=("repeat", "single"))  # fmt: skip
    add("--seed", "seed of contexts and documents (0)", type=any_number)


def task_of(arguments: argparse.Namespace) -> tuple[Task, int, int | None]:
    """Return the task, S and K."""
    task = TASKS[arguments.task]
    for name, default in DEFAULTS.items():
        if name not in task.uses and getattr(arguments, name) != default:
            used = ", ".join(_option(other) for other in task.uses)
            raise ConfigError(
                f"eval {arguments.task}: {_option(name)} does not apply to this task. It uses "
                f"{used}."
            )
    if task.needs and not arguments.data:
        raise ConfigError(f"eval {arguments.task}: nothing to read. Give {task.needs} with --data.")
    chunk = arguments.chunk or task.chunk
    top_k = task.top_k if arguments.top_k == -1 else arguments.top_k
    return task.make(arguments, chunk), chunk, top_k


def _rule(arguments: argparse.Namespace, tokens: int | None) -> ContextRule:
    from attendre_core.evaluation.tasks import ContextRule

    return ContextRule(
        arguments.context_tokens or tokens, arguments.depth, arguments.gold, arguments.seed
    )


def _triviaqa(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import TriviaQA

    return TriviaQA(
        limit=arguments.limit, new_tokens=arguments.new_tokens, data=arguments.data,
        evidence=arguments.evidence, rule=_rule(arguments, None),
    )  # fmt: skip


def _qa(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import OwnQuestions

    given = {} if arguments.template is None else {"template": arguments.template}
    return OwnQuestions(
        limit=arguments.limit, new_tokens=arguments.new_tokens, data=arguments.data,
        chat=arguments.chat, **given,
    )  # fmt: skip


def _needle(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Needle

    return Needle(
        limit=arguments.limit or 20, new_tokens=arguments.new_tokens, rule=_rule(arguments, 1024)
    )


def _multi_key(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import MultiKey

    return MultiKey(
        limit=arguments.limit or 20, new_tokens=arguments.new_tokens, data=arguments.data,
        keys=arguments.keys, depth=arguments.depth, seed=arguments.seed,
    )  # fmt: skip


def _perplexity(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Perplexity

    return Perplexity(
        data=arguments.data, tokens=arguments.context_tokens or 4096, streams=arguments.streams,
        skip=arguments.skip,
    )  # fmt: skip


def _embedding(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Embedding

    return Embedding(
        data=arguments.data, tokens=arguments.context_tokens or 384, limit=arguments.limit or 20,
        skip=arguments.skip,
    )  # fmt: skip


def _synthetic(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import SYNTHETIC

    return SYNTHETIC[arguments.reading](
        arguments.answers, limit=arguments.limit or 48, seed=arguments.seed, chunk=chunk
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_ANSWERING = ("limit", "new_tokens", "depth", "seed")
TASKS = {
    "triviaqa": TaskOptions(
        "answer questions over long contexts, with the paper's template", _triviaqa,
        ("data", "evidence", "context_tokens", "gold", *_ANSWERING),
        needs="the questions (an official file, or JSON lines)",
    ),
    "qa": TaskOptions(
        "answer questions of your own, each about a context of its own", _qa,
        ("data", "limit", "new_tokens", "template", "chat"),
        needs='JSON lines of {"context", "question", "answer"}',
    ),
    "needle": TaskOptions(
        "find a pass key in a long text of small talk", _needle, ("context_tokens", *_ANSWERING)
    ),
    "multi-key": TaskOptions(
        "find one key among many, generated or from --data records.jsonl.gz", _multi_key,
        ("data", "keys", *_ANSWERING),
    ),
    "perplexity": TaskOptions(
        "predict a long text that is read as a stream", _perplexity,
        ("data", "context_tokens", "streams", "skip"), needs="a text file",
    ),
    "embedding": TaskOptions(
        "compare an encoder's embeddings with those of full attention", _embedding,
        ("data", "context_tokens", "limit", "skip"), needs="a text file",
    ),
    "synthetic": TaskOptions(
        "the reading tasks of attendre demo", _synthetic, ("limit", "reading", "answers", "seed"),
        chunk=16, top_k=16,
    ),
}  # fmt: skip
