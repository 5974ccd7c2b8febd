"""Find the long document that a query is about, by embeddings alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import PIECEWISE, System
from attendre_core.evaluation.piecewise import unit, vectors_of
from attendre_core.evaluation.tasks.embedding import specials
from attendre_core.evaluation.tasks.filler import (
    ANIMALS,
    COLOURS,
    filler_sentences,
    hidden_among,
    sentences_of,
)
from attendre_core.evaluation.tasks.task import Metric, Scores
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.evaluation.tasks.triviaqa_files import read_triviaqa
from attendre_core.evaluation.tasks.watched import memory_bytes
from attendre_core.zoo.model import Model

__all__ = ["Asked", "FindDocument", "PassKeys", "Retrieval"]


class Asked(NamedTuple):
    """A query, and the document that answers it.

    Attributes
    ----------
    name, query
        The query with its special tokens.
    right
        Number of the document.
    documents
        All documents, without special tokens, all of the same length.
    """

    name: str
    query: list[int]
    right: int
    documents: list[list[int]]


@dataclass(frozen=True)
class FindDocument:
    """Base of the tasks in which each query belongs to one of some long documents.

    Documents are compared with a query by one embedding each, and by the best of the embeddings of
    their pieces. Subclasses say what documents and queries are.

    Parameters
    ----------
    data
        A file to take texts from.
    limit
        How many queries.
    tokens
        Tokens of a document.
    each
        Queries per document.
    window
        Tokens of a piece; None is what the model was trained on.
    seed
        Seed of everything that is sampled.
    """

    data: str = ""
    limit: int | None = 100
    tokens: int = 1024
    each: int = 4
    window: int | None = None
    seed: int = 0

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("ndcg", "nDCG@10", digits=3),
        Metric("first", "first", share=True),
        Metric("ndcg_best", "nDCG@10, best piece", digits=3),
        Metric("first_best", "first, best piece", share=True),
    )
    controls: ClassVar[tuple[str, ...]] = ("full", *PIECEWISE)
    whole: ClassVar[bool] = True
    pinned: ClassVar[int] = 8
    clamps: ClassVar[bool] = False

    def made(self, model: Model) -> tuple[list[str], list[tuple[str, str, int]]]:
        """Return the texts of all documents; and names, texts and documents of the queries."""
        raise NotImplementedError

    def identity(self) -> dict[str, Any]:
        """Return everything that the documents depend on."""
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            **{name: getattr(self, name) for name in ("limit", "tokens", "each", "window", "seed")},
        }

    def items(self, model: Model) -> list[Asked]:
        """Return the queries."""
        if model.causal:
            raise ConfigError(
                f"eval {self.name}: this model attends only backwards. Give an encoder."
            )
        texts, queries = self.made(model)
        documents = [model.tokens(text, special=False)[: self.tokens] for text in texts]
        short = min(len(row) for row in documents)
        if short < self.tokens:
            raise ConfigError(
                f"eval {self.name}: a document has {short} tokens, expected {self.tokens}. Give "
                "more text with --data, or ask for less with --context-tokens or --limit."
            )
        return [
            Asked(name, model.tokens(query), right, documents) for name, query, right in queries
        ]

    def longest(self, items: Sequence[Asked]) -> int:
        """Return the number of tokens of a document."""
        return self.tokens + 2

    def measure(
        self, model: Model, items: Sequence[Asked], system: System, batch: int
    ) -> Iterator[Scores]:
        """Embed all documents and rank them for each query."""
        around = specials(model)
        window = self.window or model.reading_part.context or 512
        documents = items[0].documents
        found = list(vectors_of(model, documents, around, system, window, batch))
        whole, scores = model.with_memory(None), []
        seconds = sum(each.seconds for each in found) / len(items)
        read = window if system.reads != "all" else self.tokens + 2
        kept = float(memory_bytes(model, system, min(read, self.tokens + 2)))
        for item in items:
            states = whole.backend.to_numpy(whole.encode([item.query]))[0]
            query = unit(np.asarray(states, dtype=np.float64).mean(axis=0))
            one = np.asarray([each.one @ query for each in found])
            best = np.asarray([(each.spans @ query).max() for each in found])
            place, place_best = rank(one, item.right), rank(best, item.right)
            scores.append((item.name, {
                "ndcg": gain(place), "first": float(place == 1),
                "ndcg_best": gain(place_best), "first_best": float(place_best == 1),
                "bytes": kept, "seconds": seconds,
            }))  # fmt: skip
        yield scores


def rank(scores: NDArray[np.float64], right: int) -> int:
    """Return the place of the right one, from 1; what is equally good comes before it.

    Examples
    --------
    >>> rank(np.asarray([0.1, 0.9, 0.9]), 1)
    2
    """
    return int((scores >= scores[right]).sum())


def gain(place: int) -> float:
    """Return the nDCG@10 of one right document at this place.

    Examples
    --------
    >>> gain(1), gain(3), gain(11)
    (1.0, 0.5, 0.0)
    """
    return 1 / math.log2(1 + place) if place <= 10 else 0.0


@dataclass(frozen=True)
class Retrieval(FindDocument):
    """Find the document with the passage that answers a TriviaQA question.

    A document is made of passages of questions that are not asked, in random order, and of one
    passage with the answer for each of its own questions, at random depths.
    """

    name: ClassVar[str] = "retrieval"

    def made(self, model: Model) -> tuple[list[str], list[tuple[str, str, int]]]:
        """Return the texts of all documents; and names, texts and documents of the queries."""
        rng = np.random.default_rng(self.seed)
        examples = read_triviaqa(self.data, None, None)
        answerable = [e for e in examples if any(p.has_answer for p in e.passages)]
        chosen = rng.permutation(len(answerable))[: self.limit or 100].tolist()
        asked = [answerable[i] for i in chosen]
        names = {example.name for example in asked}
        others = [p.text for e in examples if e.name not in names for p in e.passages]
        pool = iter([others[i] for i in rng.permutation(len(others))])
        documents: list[str] = []
        queries: list[tuple[str, str, int]] = []
        for start in range(0, len(asked), self.each):
            some = asked[start : start + self.each]
            gold = [next(p.text for p in e.passages if p.has_answer) for e in some]
            queries += [(e.name, e.question, len(documents)) for e in some]
            documents.append(self._document(model, gold, pool, rng))
        return documents, queries

    def _document(
        self, model: Model, gold: list[str], pool: Iterator[str], rng: np.random.Generator
    ) -> str:
        """Mix passages; the last one is cut off, and never one with an answer."""
        room = self.tokens - sum(len(model.tokens(text, special=False)) for text in gold)
        if room < 0:
            raise ConfigError(
                f"eval {self.name}: the passages with the answers have {-room} tokens too many for "
                "a document. Give it more with --context-tokens, or fewer questions with --keys."
            )
        texts = list(gold)
        for text in pool:
            texts.append(text)
            room -= len(model.tokens(text, special=False))
            if room <= 0:
                break
        order = [*rng.permutation(len(texts) - 1).tolist(), len(texts) - 1]
        return " ".join(texts[i] for i in order)


@dataclass(frozen=True)
class PassKeys(FindDocument):
    """Find the document in which a pass key is hidden."""

    limit: int | None = 32
    each: int = 8

    name: ClassVar[str] = "pass-keys"

    def made(self, model: Model) -> tuple[list[str], list[tuple[str, str, int]]]:
        """Return the texts of all documents; and names, texts and documents of the queries."""
        rng = np.random.default_rng(self.seed)
        owners = [f"{colour} {animal}" for colour in COLOURS for animal in ANIMALS]
        count = self.limit or 32
        if count > len(owners):
            raise ConfigError(
                f"eval {self.name}: {count} queries, expected at most {len(owners)}. Give fewer "
                "with --limit."
            )
        owners = [owners[i] for i in rng.permutation(len(owners))[:count]]

        def length(text: str) -> int:
            return len(model.tokens(text, special=False))

        documents: list[str] = []
        queries: list[tuple[str, str, int]] = []
        for start in range(0, count, self.each):
            some = owners[start : start + self.each]
            hidden = [f"The pass key of the {o} is {rng.integers(10_000, 99_999)}." for o in some]
            filler = sentences_of(self.data, rng) if self.data else filler_sentences(rng)
            queries += [(o, f"What is the pass key of the {o}?", len(documents)) for o in some]
            text = hidden_among(hidden, filler, self.tokens, length, rng)
            # What is left of the room, up to a sentence, is filled with a part of the next ones.
            documents.append(" ".join([text, *(next(filler) for _ in range(8))]))
        return documents, queries
