"""Facts hidden in small talk: many keys, many values, many questions, chains of variables.

After RULER (arXiv 2404.06654), with contexts of our own. The question comes after the context
unless it is asked first, and the answer has begun when the model continues it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.filler import (
    ANIMALS,
    COLOURS,
    filler_sentences,
    hidden_among,
    sentences_of,
)
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask
from attendre_core.evaluation.tasks.templates import template_of
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.zoo.model import Model

__all__ = ["Hidden", "HiddenKeys", "HiddenQueries", "HiddenValues", "Hiding", "Variables"]

_LETTERS = tuple("ABCDEFGHJKLMNPQRSTUVWXYZ")


class Hidden(NamedTuple):
    """What is hidden in a context, and what is asked about it.

    Attributes
    ----------
    needles
        Sentences, in the order in which they appear.
    question, lead
        The question, and the beginning of the answer that the model continues.
    answers
        What is to be found, all of it; the log-likelihood is that of the list.
    """

    needles: list[str]
    question: str
    lead: str
    answers: list[str]


@dataclass(frozen=True)
class Hiding(QuestionTask):
    """Base of the tasks that hide sentences in small talk; subclasses say which.

    Parameters
    ----------
    tokens
        Length of a context.
    depth
        Where the sentences are, 0 (start) to 1 (end); None samples a place for each.
    data
        A text file to take the small talk from; if empty, it is made up.
    question
        ``"last"``: after the context, when the memory has already chosen. ``"first"``: before it.
    seed
        Seed of everything that is sampled.
    """

    limit: int | None = 20
    tokens: int = 512
    depth: float | None = None
    data: str = ""
    question: Literal["first", "last"] = "last"
    seed: int = 0

    pinned: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ConfigError(
                f"eval {self.name}: depth is {self.depth}, expected 0 (first) to 1 (last) or None."
            )

    def hide(self, rng: np.random.Generator) -> Hidden:
        """Sample what is hidden and asked."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        told: dict[str, Any] = {
            "context_tokens": self.tokens,
            "depth": self.depth,
            "question": self.question,
            "seed": self.seed,
            "new_tokens": self.new_tokens,
        }
        if self.data:
            told |= {"data": Path(self.data).name, "sha256": checksum(self.data)}
        return told

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield the questions; each depends only on the seed and its number."""
        length = token_counter(model)
        for number in range(20 if self.limit is None else self.limit):
            rng = np.random.default_rng((self.seed, number))
            hidden = self.hide(rng)
            filler = sentences_of(self.data, rng) if self.data else filler_sentences(rng)
            context = hidden_among(hidden.needles, filler, self.tokens, length, rng, self.depth)
            yield asked(model, f"{self.name}-{number}", hidden, context, self.question)


def asked(
    model: Model, name: str, hidden: Hidden, context: str, place: Literal["first", "last"]
) -> Question:
    """Return the question about what is hidden; all answers are wanted."""
    template = template_of(place) + hidden.lead
    listed = ", ".join(hidden.answers)
    found = question_of(model, name, hidden.question, context, [listed], template)
    return found._replace(parts=tuple(hidden.answers))


def token_counter(model: Model) -> Callable[[str], int]:
    """Return a function that counts the tokens of a sentence, each sentence once."""
    known: dict[str, int] = {}

    def length(sentence: str) -> int:
        if sentence not in known:
            known[sentence] = len(model.tokens(f" {sentence}", special=False))
        return known[sentence]

    return length


def _codes(rng: np.random.Generator, count: int) -> list[str]:
    """Sample different numbers of four digits."""
    chosen = rng.choice(9000, count, replace=False) + 1000
    return [str(code) for code in chosen]


def _names(rng: np.random.Generator, count: int) -> list[str]:
    """Sample different names such as "amber crane"."""
    chosen = rng.choice(len(COLOURS) * len(ANIMALS), count, replace=False)
    return [f"{COLOURS[i // len(ANIMALS)]} {ANIMALS[i % len(ANIMALS)]}" for i in chosen]


@dataclass(frozen=True)
class HiddenKeys(Hiding):
    """Several keys have a code each; one of them is asked for.

    Parameters
    ----------
    keys
        How many keys there are, 1 to 100.
    """

    keys: int = 4

    name: ClassVar[str] = "multi-key"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.keys <= 100:
            raise ConfigError(f"eval {self.name}: keys is {self.keys}, expected 1 to 100.")

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {**super().identity(), "keys": self.keys}

    def hide(self, rng: np.random.Generator) -> Hidden:
        """Sample keys and codes."""
        names, codes = _names(rng, self.keys), _codes(rng, self.keys)
        needles = [f"The code of the {n} is {c}." for n, c in zip(names, codes, strict=True)]
        one = int(rng.integers(self.keys))
        lead = f"The code of the {names[one]} is"
        return Hidden(needles, f"What is the code of the {names[one]}?", lead, [codes[one]])


@dataclass(frozen=True)
class HiddenValues(Hiding):
    """One key has several codes; all of them are asked for."""

    values: int = 4

    name: ClassVar[str] = "multi-value"

    def hide(self, rng: np.random.Generator) -> Hidden:
        """Sample a key and its codes."""
        (name,), codes = _names(rng, 1), _codes(rng, self.values)
        needles = [f"One code of the {name} is {code}." for code in codes]
        lead = f"The codes of the {name} are"
        return Hidden(needles, f"What are all the codes of the {name}?", lead, codes)


@dataclass(frozen=True)
class HiddenQueries(Hiding):
    """Several keys have a code each; the codes of half of them are asked for."""

    keys: int = 4

    name: ClassVar[str] = "multi-query"

    def hide(self, rng: np.random.Generator) -> Hidden:
        """Sample keys and codes."""
        names, codes = _names(rng, self.keys), _codes(rng, self.keys)
        needles = [f"The code of the {n} is {c}." for n, c in zip(names, codes, strict=True)]
        chosen = rng.choice(self.keys, self.keys // 2, replace=False)
        wanted = " and of the ".join(names[i] for i in chosen)
        lead = f"The codes of the {wanted} are"
        question = f"What are the codes of the {wanted}?"
        return Hidden(needles, question, lead, [codes[i] for i in chosen])


@dataclass(frozen=True)
class Variables(Hiding):
    """Follow a variable: one gets a number, others are set to it one after another.

    A second chain of the same length is there to be told apart.
    """

    hops: int = 3

    name: ClassVar[str] = "variables"

    def hide(self, rng: np.random.Generator) -> Hidden:
        """Sample two chains; their statements alternate, each chain in its order."""
        count = self.hops + 1
        chosen: list[str] = []
        while len(chosen) < 2 * count:
            word = "".join(_LETTERS[i] for i in rng.integers(len(_LETTERS), size=3))
            if word not in chosen:
                chosen.append(word)
        numbers = _codes(rng, 2)
        needles = []
        for i in range(count):
            for chain, number in zip((chosen[:count], chosen[count:]), numbers, strict=True):
                value = number if i == 0 else chain[i - 1]
                needles.append(f"Variable {chain[i]} is set to {value}.")
        question = f"Which variables have the value {numbers[0]}?"
        lead = f"The variables with the value {numbers[0]} are"
        return Hidden(needles, question, lead, chosen[:count])
