"""The synthetic reading tasks: how documents are sampled, and how they are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import CONTROLS, System
from attendre_core.evaluation.tasks.accuracy import measure
from attendre_core.evaluation.tasks.document import Document, Tokens
from attendre_core.evaluation.tasks.synthetic_words import (
    ANSWER,
    BEGIN,
    CONTEXT,
    KEYS,
    NOISE,
    QUESTIONS,
    VALUES,
    VOCABULARY,
)
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.watched import memory_bytes
from attendre_core.zoo.model import Model

__all__ = ["SHORTEST", "SyntheticTask"]

#: Tokens per record.
_WIDTH = 12
#: Range of the question's position: four sinks hold only the first of its positions.
_QUESTION_PLACES = (3, 7)
#: Room for the longest beginning, one record and the last token.
SHORTEST = 23


@dataclass(frozen=True)
class SyntheticTask:
    """Base of the synthetic reading tasks; subclasses place value and key within a record.

    Parameters
    ----------
    answers
        ``"repeat"``: the keys of records are sampled at random, so the answer recurs, as in
        TriviaQA. ``"single"``: exactly one record, in the middle half, answers the question.
    limit, seed
        How many documents are measured, and their seed.
    chunk
        Documents have 8 to 32 chunks of this many tokens.
    """

    answers: Literal["repeat", "single"] = "repeat"
    limit: int = 48
    seed: int = 0
    chunk: int = 16

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("right", "right", share=True),)
    controls: ClassVar[tuple[str, ...]] = CONTROLS
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 10
    clamps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.answers not in ("repeat", "single"):
            raise ConfigError(
                f"{type(self).__name__}: answers is {self.answers!r}, expected 'repeat' or "
                "'single'."
            )

    def places(self, rng: np.random.Generator, records: int) -> tuple[Tokens, Tokens]:
        """Return the offsets of value and key within each of ``records`` records."""
        raise NotImplementedError

    # ------------------------------------------------------------ documents

    def document(self, rng: np.random.Generator, length: int, name: str = "") -> Document:
        """Sample a document of ``length`` tokens."""
        self._check_length(length)
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
            tokens, int(values[0]), int(keys[0]), context, start + value_at, keys[which], name
        )

    def _check_length(self, length: int) -> None:
        if length < SHORTEST:
            raise ConfigError(
                f"{type(self).__name__}.document: length is {length}, expected at least "
                f"{SHORTEST}, room for the question and one record."
            )

    def documents(
        self, seed: int, count: int, *, chunks: tuple[int, int] = (8, 32), chunk: int = 16
    ) -> Iterator[Document]:
        """Sample documents of random lengths; equal seeds give equal documents.

        Parameters
        ----------
        chunks
            Fewest and most chunks per document.
        chunk
            Tokens per chunk.

        Examples
        --------
        >>> from attendre_core.evaluation.tasks import LookAhead
        >>> sorted({d.tokens.size for d in LookAhead().documents(0, 50, chunks=(2, 4))})
        [32, 48, 64]
        """
        for number in range(count):
            # A document does not depend on how many are sampled.
            rng = np.random.default_rng((seed, number))
            length = chunk * int(rng.integers(chunks[0], chunks[1] + 1))
            yield self.document(rng, length, f"document-{number}")

    def _which(self, rng: np.random.Generator, records: int, number: int) -> NDArray[np.int64]:
        """Sample the key of each record; key 0 is the one that is asked for."""
        which = rng.integers(self.answers == "single", number, records)
        if self.answers == "single":
            quarter = records // 4
            which[int(rng.integers(quarter, records - quarter))] = 0
        elif not (which == 0).any():
            which[int(rng.integers(records))] = 0
        return which

    # ------------------------------------------------------------ as a task

    def identity(self) -> dict[str, Any]:
        """Return everything that the documents depend on."""
        return {"answers": self.answers, "seed": self.seed}

    def items(self, model: Model) -> list[Document]:
        """Sample the documents to measure."""
        if model.reading_part.vocabulary != VOCABULARY:
            raise ConfigError(
                f"eval {self.name}: the vocabulary of this model has "
                f"{model.reading_part.vocabulary} tokens, that of the task {VOCABULARY}. Use "
                "--model prefix-lm or --model encoder-decoder, which ship with the package."
            )
        return list(self.documents(self.seed, self.limit, chunk=self.chunk))

    def longest(self, items: Sequence[Document]) -> int:
        """Return the number of tokens of the longest document."""
        return max(document.tokens.size for document in items)

    def measure(
        self, model: Model, items: Sequence[Document], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read documents in batches and check the answers."""
        for start in range(0, len(items), batch):
            documents = items[start : start + batch]
            outcome = measure(model, documents, system, batch=batch)
            yield [
                (
                    document.name,
                    {
                        "right": float(right),
                        "admitted": float(admitted),
                        "present": float(present),
                        "bytes": float(
                            memory_bytes(
                                model, system,
                                system.part_of(document.tokens, document.closed_book).size,
                            )
                        ),
                    },
                )
                for document, right, admitted, present in zip(documents, *outcome, strict=True)
            ]  # fmt: skip
