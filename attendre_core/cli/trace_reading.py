"""The input of ``attendre trace``: a document for a tiny model, or your text for your model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from attendre_core.cli.terminal import standard_input
from attendre_core.errors import ConfigError
from attendre_core.paths import user_path

if TYPE_CHECKING:
    from attendre_core.evaluation.tracing.words import Naming
    from attendre_core.zoo.model import Model

__all__ = ["TINY", "Reading", "own_reading", "tiny_reading"]

#: The tiny models that ship with the package.
TINY = ("prefix-lm", "encoder-decoder")
#: Length of the document that a tiny model reads, in chunks.
_CHUNKS = 16


class Reading(NamedTuple):
    """A model and the input that it reads.

    Attributes
    ----------
    model, tokens
        The model, and the token ids that it reads.
    naming
        How tokens are shown; None asks the tokenizer.
    title
        One sentence about model and input.
    answer
        The right next word, if there is one.
    words
        What was read, where tokens do not tell.
    """

    model: Model
    tokens: list[int]
    naming: Naming | None
    title: str
    answer: str | None = None
    words: tuple[str, ...] | None = None


def tiny_reading(arguments: argparse.Namespace) -> Reading:
    """Load a tiny model and draw a document of its task."""
    if arguments.text is not None or arguments.prompt is not None:
        raise ConfigError(
            f"trace: the tiny model {arguments.model} reads only documents of its own tasks "
            "(--task, --seed). To read a text, give another model with --model."
        )
    for name in ("attention", "limit", "answer"):
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"trace: --{name} is for models that read text, not for {arguments.model}. Leave "
                "it out."
            )
    return _story(arguments) if arguments.task == "story" else _synthetic(arguments)


def _story(arguments: argparse.Namespace) -> Reading:
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.tasks import Story

    (document,) = Story("single").documents(arguments.seed, 1, chunks=(_CHUNKS, _CHUNKS))
    question = "".join(document.words[: document.context + 1]).strip()
    answer = Story.word(document.answer)
    return Reading(
        load_tiny(arguments.model, backend=arguments.backend),
        document.tokens.tolist(),
        lambda tokens: [Story.word(token) for token in tokens],
        f"{question} A tiny model reads {document.tokens.size} words; {answer} is right",
        answer,
        document.words,  # those that mean nothing to the model share tokens
    )


def _synthetic(arguments: argparse.Namespace) -> Reading:
    from attendre_core.evaluation import load_tiny
    from attendre_core.evaluation.tasks import SYNTHETIC, word
    from attendre_core.evaluation.tasks.synthetic_words import KEYS, QUESTIONS

    task = arguments.task
    (document,) = SYNTHETIC[task]().documents(arguments.seed, 1, chunks=(_CHUNKS, _CHUNKS))
    title = (
        f"{arguments.model} reads a {task} document of {document.tokens.size} tokens; "
        f"{word(QUESTIONS[document.question])} asks for the value of "
        f"{word(KEYS[document.question])}, and {word(document.answer)} is right"
    )
    return Reading(
        load_tiny(arguments.model, backend=arguments.backend),
        document.tokens.tolist(),
        lambda tokens: [f"{word(token)} " for token in tokens],
        title,
        word(document.answer),
    )


def own_reading(arguments: argparse.Namespace) -> Reading:
    """Load the user's model and read the user's text."""
    from attendre_core.zoo import load

    text = arguments.prompt if arguments.prompt is not None else _text(arguments.text)
    model = load(
        arguments.model, backend=arguments.backend, dtype=arguments.dtype,
        attention=arguments.attention,
    )  # fmt: skip
    tokens = model.tokens(text)[: arguments.limit]
    if not tokens:
        raise ConfigError("trace: the text is empty, expected at least one token.")
    source = "a prompt" if arguments.prompt is not None else Path(arguments.text).name
    if arguments.text == "-":
        source = "standard input"
    title = f"{Path(arguments.model).name} reads {source}, {len(tokens)} tokens"
    answer = None if arguments.answer is None else _first_word(model, arguments.answer)
    return Reading(model, tokens, None, title, answer)


def _first_word(model: Model, answer: str) -> str:
    """Return the text of the first token of an answer that follows a space."""
    tokens = model.tokens(f" {answer.strip()}", special=False)
    for token in tokens:
        word = model.text([token]).strip()
        if word:
            return word
    raise ConfigError("trace: --answer has no text, expected the word that should come next.")


def _text(file: str | None) -> str:
    if file is None:
        raise ConfigError("trace: there is nothing to read. Give --text FILE or --prompt TEXT.")
    try:
        if file == "-":
            return standard_input().read()
        return user_path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"trace: {file} cannot be read ({error.strerror}).") from error
