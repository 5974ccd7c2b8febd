"""A reading task: a question, a long context of records, and one token as the answer.

::

    begin noise* QUESTION noise* context: record record record ... noise* answer:  ->  value

The question comes first and only once, as in the paper's template, so that a reader in chunks
must carry it along. Each record binds a value to a key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.vocabulary import (
    ANSWER,
    BEGIN,
    CONTEXT,
    KEYS,
    NOISE,
    QUESTIONS,
    VALUES,
)

__all__ = ["SHORTEST", "Document", "Task"]

#: Tokens of a record.
_WIDTH = 12
#: The question word stands on one of these places: four sinks hold only the first of them.
_QUESTION_PLACES = (3, 7)
#: Room for the longest beginning, one record and the last token.
SHORTEST = 23

Tokens = NDArray[np.int32]


class Document(NamedTuple):
    """One example.

    Attributes
    ----------
    tokens
        int32, (length,): the whole input.
    answer
        The token that is right.
    question
        Number of the asked key, 0 to 15.
    context
        Place of the token ``context:``; records start behind it.
    values, owners
        int32, (records,): places of the values, and the number of the key of each.
    """

    tokens: Tokens
    answer: int
    question: int
    context: int
    values: Tokens
    owners: Tokens

    @property
    def closed_book(self) -> Tokens:
        """The question without the context."""
        return np.append(self.tokens[: self.context + 1], self.tokens[-1])


@dataclass(frozen=True)
class Task:
    """Base of the reading tasks; a task says where in a record value and key stand.

    Parameters
    ----------
    answers
        ``"repeat"``: records are drawn at random, so the answer recurs, as in TriviaQA.
        ``"single"``: exactly one record answers the question, in the middle half.
    """

    answers: Literal["repeat", "single"] = "repeat"

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.answers not in ("repeat", "single"):
            raise ConfigError(
                f"{type(self).__name__}: answers is {self.answers!r}, expected 'repeat' or "
                "'single'."
            )

    def places(self, rng: np.random.Generator, records: int) -> tuple[Tokens, Tokens]:
        """Return the places of value and key within each of so many records."""
        raise NotImplementedError

    def document(self, rng: np.random.Generator, length: int) -> Document:
        """Draw a document of ``length`` tokens."""
        if length < SHORTEST:
            raise ConfigError(
                f"{type(self).__name__}.document: length is {length}, expected at least "
                f"{SHORTEST}, room for the question and one record."
            )
        tokens = rng.integers(NOISE.start, NOISE.stop, length, dtype=np.int32)
        asked_at = int(rng.integers(*_QUESTION_PLACES))
        context = asked_at + 1 + int(rng.integers(0, 3))
        records = (length - context - 2) // _WIDTH
        number = int(rng.integers(6, 9))
        keys = rng.permutation(len(KEYS))[:number].astype(np.int32)
        values = rng.permutation(len(VALUES))[:number].astype(np.int32) + VALUES.start
        which = self._which(rng, records, number)
        start = context + 1 + _WIDTH * np.arange(records, dtype=np.int32)
        value_at, key_at = self.places(rng, records)
        tokens[[0, asked_at, context, -1]] = [BEGIN, QUESTIONS[keys[0]], CONTEXT, ANSWER]
        tokens[start + value_at] = values[which]
        tokens[start + key_at] = keys[which] + KEYS.start
        return Document(
            tokens, int(values[0]), int(keys[0]), context, start + value_at, keys[which]
        )

    def documents(
        self, seed: int, count: int, *, chunks: tuple[int, int] = (8, 32), chunk: int = 16
    ) -> Iterator[Document]:
        """Draw documents whose lengths are spread over a range, the same for the same seed.

        Parameters
        ----------
        chunks
            Fewest and most chunks of a document.
        chunk
            Tokens of a chunk.

        Examples
        --------
        >>> from attendre_core.evaluation.tasks import LookAhead
        >>> sorted({d.tokens.size for d in LookAhead().documents(0, 50, chunks=(2, 4))})
        [32, 48, 64]
        """
        for number in range(count):
            # A document does not depend on how many are drawn.
            rng = np.random.default_rng((seed, number))
            yield self.document(rng, chunk * int(rng.integers(chunks[0], chunks[1] + 1)))

    def _which(self, rng: np.random.Generator, records: int, number: int) -> NDArray[np.int64]:
        """Draw the key of each record; key 0 is the one that is asked for."""
        which = rng.integers(self.answers == "single", number, records)
        if self.answers == "single":
            quarter = records // 4
            which[int(rng.integers(quarter, records - quarter))] = 0
        elif not (which == 0).any():
            which[int(rng.integers(records))] = 0
        return which
