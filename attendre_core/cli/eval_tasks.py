"""The tasks of ``attendre eval``, and how command-line options become a task."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from attendre_core.arguments import Parser, whole_number
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.evaluation.tasks import ContextRule, Task
    from attendre_core.evaluation.tasks.haystack import Hiding

__all__ = ["TASKS", "TaskOptions", "add_task", "task_of"]

#: The options that only some tasks use, with their defaults.
DEFAULTS: dict[str, Any] = {
    "data": "", "evidence": None, "limit": None, "context_tokens": None, "depth": None, "gold": 1,
    "keys": None, "new_tokens": None, "question": None, "streams": 1, "skip": 0,
    "reading": "look-ahead", "answers": "repeat", "seed": 0, "template": None, "chat": False,
    "temperature": 0.0, "piece": None,
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
    top_k: int | None = 128
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
    add("--keys", "multi-key: records per context (40; 4 among small talk); retrieval, pass-keys: "
        "queries per document (4, 8)", metavar="COUNT", type=whole_number(2))  # fmt: skip
    add("--piece", "retrieval, pass-keys: tokens of a piece, for what reads piece by piece (what "
        "the model was trained on)", metavar="COUNT", type=whole_number(8))  # fmt: skip
    add("--new-tokens", "tokens to generate; 0 measures only the answer's likelihood (16; kv: 48,"
        " multi-turn: 24, continuation: 128)",
        metavar="COUNT", type=any_number)  # fmt: skip
    add("--question", "ask before the context or after it (first; after RULER and kv: last)",
        choices=("first", "last"))  # fmt: skip
    add("--streams", "perplexity: texts read side by side (1)", **count)
    add("--skip", "characters to skip at the beginning of a text (0)", metavar="COUNT",
        type=any_number)  # fmt: skip
    add("--reading", "synthetic: which task (look-ahead)", choices=("look-ahead", "past-only"))
    add("--answers", "synthetic: answers that recur or occur once (repeat)",
        choices=("repeat", "single"))  # fmt: skip
    add("--temperature", "continuation: 0 takes the likeliest token (0)", metavar="NUMBER",
        type=float)  # fmt: skip
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
        limit=arguments.limit, new_tokens=_new_tokens(arguments), data=arguments.data,
        evidence=arguments.evidence, rule=_rule(arguments, None),
        question=arguments.question or "first",
    )  # fmt: skip


def _qa(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import OwnQuestions

    given = {} if arguments.template is None else {"template": arguments.template}
    return OwnQuestions(
        limit=arguments.limit, new_tokens=_new_tokens(arguments), data=arguments.data,
        chat=arguments.chat, **given,
    )  # fmt: skip


def _needle(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Needle

    return Needle(
        limit=arguments.limit or 20, new_tokens=_new_tokens(arguments),
        rule=_rule(arguments, 1024), question=arguments.question or "first",
    )  # fmt: skip


def _multi_key(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import HiddenKeys, MultiKey

    if arguments.context_tokens:
        if arguments.data.endswith((".gz", ".jsonl")):
            raise ConfigError(
                f"eval multi-key: {arguments.data} holds records, but with --context-tokens, "
                "--data is a text in which keys are hidden. Leave --context-tokens out, or use "
                "the task kv."
            )
        return _hiding(HiddenKeys, arguments, keys=arguments.keys or 4)
    return MultiKey(
        limit=arguments.limit or 20, new_tokens=_new_tokens(arguments), data=arguments.data,
        keys=arguments.keys or 40, depth=arguments.depth, seed=arguments.seed,
        question=arguments.question or "first",
    )  # fmt: skip


def _hiding(task: type[Hiding], arguments: argparse.Namespace, **more: Any) -> Task:
    """Make a task that hides sentences in small talk."""
    return task(
        limit=arguments.limit or 20, new_tokens=_new_tokens(arguments),
        tokens=arguments.context_tokens or 512, depth=arguments.depth, data=arguments.data,
        question=arguments.question or "last", seed=arguments.seed, **more,
    )  # fmt: skip


def _multi_value(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import HiddenValues

    return _hiding(HiddenValues, arguments)


def _multi_query(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import HiddenQueries

    return _hiding(HiddenQueries, arguments)


def _variables(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Variables

    return _hiding(Variables, arguments)


def _counting(task: type[Any], arguments: argparse.Namespace) -> Task:
    made: Task = task(
        limit=arguments.limit or 20, new_tokens=_new_tokens(arguments),
        tokens=arguments.context_tokens or 512, question=arguments.question or "last",
        seed=arguments.seed,
    )  # fmt: skip
    return made


def _common_words(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import CommonWords

    return _counting(CommonWords, arguments)


def _frequent_words(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import FrequentWords

    return _counting(FrequentWords, arguments)


def _kv(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import KeyValues

    return KeyValues(
        limit=arguments.limit, new_tokens=_new_tokens(arguments, 48), data=arguments.data,
        tokens=arguments.context_tokens or 1024, depth=arguments.depth,
        question=arguments.question or "last",
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


def _finding(task: type[Any], arguments: argparse.Namespace) -> Task:
    usual = task()
    made: Task = task(
        data=arguments.data, limit=arguments.limit or usual.limit,
        tokens=arguments.context_tokens or usual.tokens, each=arguments.keys or usual.each,
        window=arguments.piece, seed=arguments.seed,
    )  # fmt: skip
    return made


def _retrieval(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Retrieval

    return _finding(Retrieval, arguments)


def _pass_keys(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import PassKeys

    return _finding(PassKeys, arguments)


def _continuation(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import Continuation

    return Continuation(
        data=arguments.data, tokens=arguments.context_tokens or 512,
        new_tokens=_new_tokens(arguments, 128), limit=arguments.limit or 20, skip=arguments.skip,
        temperature=arguments.temperature, seed=arguments.seed,
    )  # fmt: skip


def _multi_turn(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import MultiTurn

    return MultiTurn(
        tokens=arguments.context_tokens or 1024, new_tokens=_new_tokens(arguments, 24),
        limit=arguments.limit or 20, seed=arguments.seed,
    )  # fmt: skip


def _synthetic(arguments: argparse.Namespace, chunk: int) -> Task:
    from attendre_core.evaluation.tasks import SYNTHETIC

    return SYNTHETIC[arguments.reading](
        arguments.answers, limit=arguments.limit or 48, seed=arguments.seed, chunk=chunk
    )


def _new_tokens(arguments: argparse.Namespace, usual: int = 16) -> int:
    given: int | None = arguments.new_tokens
    return usual if given is None else given


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


_ANSWERING = ("limit", "new_tokens", "depth", "seed", "question")
_HIDING = ("data", "context_tokens", *_ANSWERING)
_FINDING = ("data", "context_tokens", "limit", "keys", "piece", "seed")
_COUNTING = ("limit", "new_tokens", "seed", "question", "context_tokens")
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
        ("data", "keys", "context_tokens", *_ANSWERING),
    ),
    "multi-value": TaskOptions(
        "find all codes of one key in small talk, made up or from --data", _multi_value, _HIDING
    ),
    "multi-query": TaskOptions(
        "find the codes of two of four keys in small talk", _multi_query, _HIDING
    ),
    "variables": TaskOptions(
        "follow a chain of variables through small talk", _variables, _HIDING
    ),
    "common-words": TaskOptions(
        "find the words of a list that occur most often", _common_words, _COUNTING
    ),
    "frequent-words": TaskOptions(
        "rank made-up words by their frequency", _frequent_words, _COUNTING
    ),
    "kv": TaskOptions(
        "find the value of one of many random keys", _kv,
        ("data", "context_tokens", "limit", "new_tokens", "depth", "question"),
        needs="JSON lines of ordered_kv_records and key",
    ),
    "multi-turn": TaskOptions(
        "remember facts in a conversation on one stream", _multi_turn,
        ("context_tokens", "limit", "new_tokens", "seed"),
    ),
    "continuation": TaskOptions(
        "continue a text, and count what is repeated", _continuation,
        ("data", "context_tokens", "limit", "new_tokens", "skip", "temperature", "seed"),
        needs="a text file",
    ),
    "perplexity": TaskOptions(
        "predict a long text that is read as a stream", _perplexity,
        ("data", "context_tokens", "streams", "skip"), needs="a text file",
    ),
    "embedding": TaskOptions(
        "compare an encoder's embeddings with those of full attention", _embedding,
        ("data", "context_tokens", "limit", "skip"), needs="a text file",
    ),
    "retrieval": TaskOptions(
        "find the long document that answers a question, by embeddings", _retrieval, _FINDING,
        needs="the questions (an official file, or JSON lines)", top_k=None,
    ),
    "pass-keys": TaskOptions(
        "find the long document in which a pass key is hidden, by embeddings", _pass_keys,
        _FINDING, top_k=None,
    ),
    "synthetic": TaskOptions(
        "the reading tasks of attendre demo", _synthetic, ("limit", "reading", "answers", "seed"),
        chunk=16, top_k=16,
    ),
}  # fmt: skip
