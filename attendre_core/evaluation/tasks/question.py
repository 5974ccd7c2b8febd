"""A question about a context, as the tokens that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.zoo.model import Model

__all__ = ["TEMPLATE", "Question", "question_of"]

#: The paper's template: the question comes before the context and is not repeated after it.
TEMPLATE = "Question: {question}\n\nContext: {context}\n\nAnswer: "
_CLOSED = "Question: {question}\n\nAnswer: "


class Question(NamedTuple):
    """A prompt and its right answers.

    Attributes
    ----------
    name
        Unique within its task.
    tokens, closed
        The whole prompt, and the prompt without the context.
    gold
        Tokens of the first alias, whose log-likelihood is measured.
    aliases
        All answers that are accepted as right.
    """

    name: str
    tokens: list[int]
    closed: list[int]
    gold: list[int]
    aliases: tuple[str, ...]


def question_of(
    model: Model, name: str, question: str, context: str, aliases: Sequence[str]
) -> Question:
    """Fill the template and tokenize it.

    A decoder's prompt ends in "Answer:". The space after it becomes part of the answer, because
    that is how tokenizers split the whole text.
    """
    if not aliases or not aliases[0].strip():
        raise ConfigError(f"question {name}: there is no answer, expected at least one.")
    gold = aliases[0].strip()
    whole = TEMPLATE.format(question=question, context=context)
    closed = _CLOSED.format(question=question)
    if model.architecture.kind == "encoder-decoder":
        answer = model.tokens(gold)
    else:
        whole, closed = whole.rstrip(" "), closed.rstrip(" ")
        answer = _continuation(model, closed, " " + gold)
    return Question(
        name, _open(model, whole), _open(model, closed), answer, tuple(dict.fromkeys(aliases))
    )


def _open(model: Model, text: str) -> list[int]:
    """Return the tokens of a prompt; in a decoder, without end tokens after it."""
    tokens = model.tokens(text)
    if model.architecture.kind != "encoder-decoder":
        while len(tokens) > 1 and tokens[-1] in model.end:
            tokens = tokens[:-1]
    return tokens


def _continuation(model: Model, prompt: str, answer: str) -> list[int]:
    """Return the tokens that an answer adds to a prompt."""
    before, both = _open(model, prompt), _open(model, prompt + answer)
    shared = 0
    while shared < min(len(before), len(both)) and before[shared] == both[shared]:
        shared += 1
    # If the end of the prompt and the answer are one token, that token is scored.
    return both[shared:] or both[-1:]
