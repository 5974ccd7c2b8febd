"""Questions of your own: JSON lines of contexts, questions and answers."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask
from attendre_core.evaluation.tasks.templates import TEMPLATE, check_template
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.paths import user_path
from attendre_core.zoo.model import Model

__all__ = ["OwnQuestion", "OwnQuestions", "read_questions"]

_WHERE = "eval qa"
_EXPECTED = (
    'Expected one object per line: {"context": "...", "question": "...", "answer": "..."}, or '
    '"answers": ["...", ...]; "id" may name it'
)
#: Of several wrong lines, so many are named.
_SHOWN = 5


class OwnQuestion(NamedTuple):
    """One line of a file."""

    name: str
    context: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class OwnQuestions(QuestionTask):
    """Questions of your own, each about a context of its own.

    Parameters
    ----------
    data
        As in `read_questions`.
    template
        The prompt, with ``{question}`` and ``{context}`` in it. Closed book reads it without the
        paragraph of the context.
    chat
        Wrap the prompt in the model's own chat template, as a message of the user.
    """

    data: str = ""
    template: str = TEMPLATE
    chat: bool = False

    name: ClassVar[str] = "qa"

    def __post_init__(self) -> None:
        check_template(_WHERE, self.template)

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        told = {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            "template": self.template,
            "new_tokens": self.new_tokens,
        }
        # Results of prompts without a chat template keep their names.
        return {**told, "chat": True} if self.chat else told

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield the questions in the order of the file."""
        for name, context, question, answers in read_questions(self.data):
            yield question_of(
                model, name, question, context, answers, self.template, chat=self.chat
            )


def read_questions(path: str | Path) -> list[OwnQuestion]:
    """Read a file of JSON lines, optionally compressed (``.gz``).

    Each line is an object with ``context``, ``question``, and ``answer`` (a text) or ``answers``
    (a list of texts, all of them right; the log-likelihood is that of the first). ``id`` names a
    question; without it, its name is the number of its line. Other fields are ignored. If a line is
    wrong, nothing is read.

    Returns
    -------
    list
        In the order of the file; repeated names get a number, as in ``"name#2"``.
    """
    file = user_path(path)
    if not file.is_file():
        raise ConfigError(f"{_WHERE}: there is no file {file}. Give the questions with --data.")
    try:
        raw = file.read_bytes()
        text = (gzip.decompress(raw) if file.suffix == ".gz" else raw).decode("utf-8-sig")
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise ConfigError(
            f"{_WHERE}: {file} cannot be read as UTF-8 text ({error}). {_EXPECTED}."
        ) from error
    found, wrong = [], []
    seen: Counter[str] = Counter()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            one = _question(json.loads(line), number)
        except RecursionError:
            wrong.append(f"line {number} is nested too deeply")
        except ValueError as error:
            wrong.append(f"line {number}: {error}")
        else:
            seen[one.name] += 1
            count = seen[one.name]
            found.append(one if count == 1 else one._replace(name=f"{one.name}#{count}"))
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigError(
            f"{_WHERE}: {len(wrong)} of {len(wrong) + len(found)} lines of {file} cannot be used: "
            f"{'; '.join(wrong[:_SHOWN])}{more}. {_EXPECTED}."
        )
    if not found:
        raise ConfigError(f"{_WHERE}: {file} has no questions. {_EXPECTED}.")
    return found


def _question(entry: Any, number: int) -> OwnQuestion:
    """Check one line; a `ValueError` says what is wrong with it."""
    if not isinstance(entry, dict):
        raise ValueError(f"is {_kind(entry)}, not an object")
    given = [field for field in ("answer", "answers") if field in entry]
    if len(given) != 1:
        both = "both 'answer' and 'answers'" if given else "neither 'answer' nor 'answers'"
        raise ValueError(f"has {both}")
    answers = entry[given[0]]
    if not isinstance(answers, list):
        answers = [answers]
    if not answers:
        raise ValueError(f"has an empty list of {given[0]!r}")
    named = entry.get("id")
    name = str(number) if named is None else _text("id", named)
    for field in ("context", "question"):
        if field not in entry:
            raise ValueError(f"has no {field!r}")
    context, question = (_text(field, entry[field]) for field in ("context", "question"))
    texts = tuple(_text(given[0], answer) for answer in answers)
    return OwnQuestion(name, context, question, texts)


def _text(field: str, value: Any) -> str:
    """Return a text, or a number as a text."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"has {field!r} that is {_kind(value)}, not a text")
    text = str(value)
    if not text.strip():
        raise ValueError(f"has an empty {field!r}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"has {field!r} with half of a surrogate pair") from error
    return text


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")
