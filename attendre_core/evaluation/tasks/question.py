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
    context
        How many of the tokens come before what follows the context: the question, or what leads
        to the answer. At least one token follows.
    parts
        If several things are asked for: all that a whole answer names; else empty.
    """

    name: str
    tokens: list[int]
    closed: list[int]
    gold: list[int]
    aliases: tuple[str, ...]
    context: int = 0
    parts: tuple[str, ...] = ()


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
        return _asked(model, name, (whole, closed), context, gold, aliases)
    if model.architecture.kind == "encoder-decoder":
        answer = model.tokens(gold)
    else:
        whole, closed = whole.rstrip(" "), closed.rstrip(" ")
        # What stands before the answer is the same in both, unless a field does.
        before = whole if template.endswith(("{question}", "{context}")) else closed
        joined = before[-1:].isspace() or before.endswith('"')
        answer = _continuation(model, before, gold if joined else f" {gold}")
    tokens = _open(model, whole)
    until = template.partition("{context}")[0] + "{context}"
    end = _shared(_open(model, filled(until, question, context).rstrip()), tokens)
    return Question(
        name, tokens, _open(model, closed), answer, tuple(dict.fromkeys(aliases)),
        min(end, len(tokens) - 1),
    )  # fmt: skip


def _asked(
    model: Model, name: str, texts: Sequence[str], context: str, gold: str, aliases: Sequence[str]
) -> Question:
    """Ask in the format of a chat; what the model then writes is the assistant's answer."""
    template = chat_template_for(model)
    whole, closed = (
        template.render([{"role": "user", "content": text.strip()}], prompt=True) for text in texts
    )
    before, both = (model.tokens(text, special=False) for text in (closed, closed + gold))
    answer = both[_shared(before, both) :] or both[-1:]
    tokens = model.tokens(whole, special=False)
    place = whole.find(context.strip()) + len(context.strip())
    end = _shared(model.tokens(whole[:place], special=False), tokens)
    return Question(
        name, tokens, before, answer, tuple(dict.fromkeys(aliases)), min(end, len(tokens) - 1)
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
