"""A question about a context, as text and as the tokens that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.zoo.model import Model

__all__ = ["TEMPLATE", "Question", "question_of"]

#: The paper's template: the question comes before the context, and only there.
TEMPLATE = "Question: {question}\n\nContext: {context}\n\nAnswer: "
_CLOSED = "Question: {question}\n\nAnswer: "


class Question(NamedTuple):
    """What is asked, read and compared.

    Attributes
    ----------
    name
        Unique within its task.
    tokens, closed
        The whole prompt, and the prompt without the context.
    gold
        Tokens of the right answer whose log-likelihood is measured: that of the first alias.
    aliases
        All answers that count as right.
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

    A decoder's prompt ends in "Answer:", and the space after it is the beginning of the answer,
    because that is how its tokenizer splits the whole text; the text is the same.
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
    """Return the tokens of a prompt, without the token that would end it in a decoder."""
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
    # If the last word of the prompt and the answer became one token, both are scored with it.
    return both[shared:] or both[-1:]
