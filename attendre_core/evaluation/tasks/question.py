"""A question about a context, as the tokens that a model reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.templates import TEMPLATE, filled, without_context
from attendre_core.zoo.chat import chat_template_for
from attendre_core.zoo.model import Model

__all__ = ["Question", "question_of"]


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
    model: Model,
    name: str,
    question: str,
    context: str,
    aliases: Sequence[str],
    template: str = TEMPLATE,
    *,
    chat: bool = False,
) -> Question:
    """Fill the template and tokenize it; with ``chat``, as a message in the chat template.

    A decoder's prompt does not end in spaces: a space between it and the answer becomes part of
    the answer, because that is how tokenizers split the whole text.
    """
    if not aliases or not aliases[0].strip():
        raise ConfigError(f"question {name}: there is no answer, expected at least one.")
    gold = aliases[0].strip()
    whole = filled(template, question, context)
    closed = filled(without_context(template), question, "")
    if chat:
        return _asked(model, name, (whole, closed), gold, aliases)
    if model.architecture.kind == "encoder-decoder":
        answer = model.tokens(gold)
    else:
        whole, closed = whole.rstrip(" "), closed.rstrip(" ")
        # What stands before the answer is the same in both, unless a field does.
        before = whole if template.endswith(("{question}", "{context}")) else closed
        answer = _continuation(model, before, gold if before[-1:].isspace() else f" {gold}")
    return Question(
        name, _open(model, whole), _open(model, closed), answer, tuple(dict.fromkeys(aliases))
    )


def _asked(
    model: Model, name: str, texts: Sequence[str], gold: str, aliases: Sequence[str]
) -> Question:
    """Ask in the format of a chat; what the model then writes is the assistant's answer."""
    template = chat_template_for(model)
    whole, closed = (
        template.render([{"role": "user", "content": text.strip()}], prompt=True) for text in texts
    )
    before, both = (model.tokens(text, special=False) for text in (closed, closed + gold))
    answer = both[_shared(before, both) :] or both[-1:]
    return Question(
        name, model.tokens(whole, special=False), before, answer, tuple(dict.fromkeys(aliases))
    )


def _shared(one: Sequence[int], other: Sequence[int]) -> int:
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    return shared


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
    # If the end of the prompt and the answer are one token, that token is scored.
    return both[_shared(before, both) :] or both[-1:]
