"""The look-ahead task in English: where somebody lives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from attendre_core.evaluation.tasks.document import Document
from attendre_core.evaluation.tasks.story_words import (
    ADJECTIVES,
    FACTS,
    FILLERS,
    OPENINGS,
    PEOPLE,
    PLACES,
    joined,
    token_of,
)
from attendre_core.evaluation.tasks.synthetic import SyntheticTask

__all__ = ["Story"]

#: Length of a long filler, at least. It separates two facts.
_LONG = 8
#: Length of the shortest filler.
_LEAST = 3


@dataclass(frozen=True)
class Story(SyntheticTask):
    """A question about where somebody lives, then sentences, some of which say who lives where.

    These are documents of `LookAhead` to read: the keys are eight names, the values 32 places, and
    a word is a token. The models of the synthetic tasks read them, and have 28 tokens for all
    other words, so this is English for people, not a test of English.

    Examples
    --------
    >>> import numpy as np
    >>> document = Story("single").document(np.random.default_rng(0), 48)
    >>> "".join(document.words[: document.context + 1])
    " Tell me: where is Emma's house?"
    >>> len(document.words), Story.word(document.answer)
    (48, 'fountain')
    """

    name: ClassVar[str] = "story"

    @staticmethod
    def word(token: int) -> str:
        """Return the name or place that a token stands for; ``(other)`` for all other words."""
        return _WORDS.get(token, "(other)")

    def document(self, rng: np.random.Generator, length: int, name: str = "") -> Document:
        """Sample a document of ``length`` tokens."""
        self._check_length(length)
        opening = OPENINGS[int(rng.integers(len(OPENINGS)))]
        sentences = self._sentences(rng, length - len(opening.split()) - 2)
        records = sum("{person}" in sentence for sentence in sentences)
        number = int(rng.integers(6, 9))
        people = rng.permutation(len(PEOPLE))[:number]
        places = rng.permutation(len(PLACES))[:number]
        home = {int(i): PLACES[p] for i, p in zip(people, places, strict=True)}
        owners = people[self._which(rng, records, number)].astype(np.int32)
        asked, told = int(people[0]), iter(owners.tolist())
        words, values = ["", *opening.format(person=PEOPLE[asked]).split()], []
        context = len(words) - 1
        for sentence in sentences:
            if "{person}" in sentence:
                owner = next(told)
                values.append(len(words) + sentence.split().index("{place}"))
                sentence = sentence.format(
                    person=PEOPLE[owner], place=home[owner],
                    adjective=ADJECTIVES[int(rng.integers(len(ADJECTIVES)))],
                )  # fmt: skip
            words += sentence.split()
        words.append("Answer:")
        return Document(
            np.asarray([token_of(word) for word in words], dtype=np.int32),
            token_of(home[asked]), asked, context, np.asarray(values, dtype=np.int32), owners,
            name, tuple(joined(words)),
        )  # fmt: skip

    def _sentences(self, rng: np.random.Generator, room: int) -> list[str]:
        """Draw sentences of ``room`` tokens together, at least one of which is a fact."""
        drawn: list[str] = []
        fillers = _shuffled(rng)
        while True:
            fact = FACTS[int(rng.integers(len(FACTS)))]
            between = [next(fillers) for _ in range(1 + int(rng.integers(2)))]
            taken = _size(fact) + sum(map(_size, between))
            if room - taken < 2 * _LONG:
                if drawn:
                    break
                fact, between = min(FACTS, key=_size), []
                taken = _size(fact)
            drawn += [*between, fact]
            room -= taken
        while room >= 2 * _LONG:
            drawn.append(next(filler for filler in fillers if _size(filler) <= room - _LEAST))
            room -= _size(drawn[-1])
        while room:
            fits = [filler for filler in FILLERS if _size(filler) == room]
            fits = fits or [filler for filler in FILLERS if _size(filler) <= room - _LEAST]
            drawn.append(fits[int(rng.integers(len(fits)))])
            room -= _size(drawn[-1])
        return drawn


def _shuffled(rng: np.random.Generator) -> Iterator[str]:
    """Yield the long fillers again and again, each time in another order."""
    long = [filler for filler in FILLERS if _size(filler) >= _LONG]
    while True:
        for number in rng.permutation(len(long)).tolist():
            yield long[number]


def _size(sentence: str) -> int:
    return len(sentence.split())


_WORDS = {token_of(word): word for word in (*PEOPLE, *PLACES)}
