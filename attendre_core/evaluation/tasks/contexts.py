"""Contexts of a given length: passages with the answer among passages without it."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.normalisation import contains
from attendre_core.evaluation.tasks.passages import Example, Passage, split
from attendre_core.zoo.model import Model

__all__ = ["Context", "ContextRule", "context_of"]

_BETWEEN = "\n\n"
#: A cut passage of fewer tokens is left out.
_FEWEST = 8


class Context(NamedTuple):
    """The text to read, and the passages in it that contain the answer."""

    text: str
    gold: tuple[Passage, ...]


@dataclass(frozen=True)
class ContextRule:
    """How a context is built.

    Parameters
    ----------
    tokens
        Length of the context; None takes all evidence unchanged.
    depth
        Where the passages with the answer are, 0 (first) to 1 (last); None samples a place for
        each of them.
    gold
        How many passages with the answer to include, at most.
    seed
        Seed of the places and of the choice of other passages.

    Examples
    --------
    >>> ContextRule(tokens=640, depth=0.5).gold
    1
    """

    tokens: int | None = None
    depth: float | None = None
    gold: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if self.depth is not None and not 0 <= self.depth <= 1:
            raise ConfigError(
                f"context: depth is {self.depth}, expected 0 (first) to 1 (last) or None."
            )
        if self.gold < 1:
            raise ConfigError(f"context: gold is {self.gold}, expected at least one passage.")


def context_of(
    model: Model, example: Example, others: Sequence[Example], rule: ContextRule
) -> Context | None:
    """Return the context of a question; None if no passage has the answer.

    Parameters
    ----------
    others
        Questions whose passages fill the context if the question's own do not suffice; passages
        that contain an answer are not used.
    rule
        With ``tokens``, whole passages with the answer are placed among passages without it:
        first those of the same question, then those of ``others``, in an order that depends only
        on the seed and the name of the question. The last passage is cut to fit.
    """
    if rule.tokens is None:
        text = _BETWEEN.join(passage.text for passage in example.passages)
        return Context(text, tuple(p for p in example.passages if p.has_answer))
    pieces = [p for passage in example.passages for p in split(passage, example.answers)]
    gold = [p for p in pieces if p.has_answer][: rule.gold]
    if not gold:
        return None
    rng = np.random.default_rng((rule.seed, zlib.crc32(example.name.encode())))
    room = rule.tokens - sum(_length(model, p.text) for p in gold)
    if room < 0:
        raise ConfigError(
            f"context: the answer to question {example.name} is in passages of "
            f"{rule.tokens - room} tokens, but the context has {rule.tokens}. Give it more tokens, "
            "or fewer passages with the answer."
        )
    places = rng.random(len(gold)) if rule.depth is None else np.full(len(gold), rule.depth)
    without = [p for p in pieces if not contains(p.text, example.answers)]
    around = _fill(model, chain(_shuffled(rng, without), _foreign(rng, example, others)), room)
    lengths = [_length(model, text) for text in around]
    before = np.concatenate([[0], np.cumsum(lengths)])
    slots = [int(np.abs(before - place * before[-1]).argmin()) for place in places]
    texts = []
    for slot in range(len(around) + 1):
        texts += [p.text for p, at in zip(gold, slots, strict=True) if at == slot]
        texts += around[slot : slot + 1]
    return Context(_BETWEEN.join(texts), tuple(gold))


def _shuffled(rng: np.random.Generator, passages: Sequence[Passage]) -> list[Passage]:
    return [passages[i] for i in rng.permutation(len(passages))]


def _foreign(
    rng: np.random.Generator, example: Example, others: Sequence[Example]
) -> Iterator[Passage]:
    """Sample passages of other questions that do not contain the answer."""
    for i in rng.permutation(len(others)):
        other = others[i]
        if other.name == example.name or not other.passages:
            continue
        passage = other.passages[int(rng.integers(len(other.passages)))]
        for piece in split(passage, example.answers):
            if not contains(piece.text, example.answers):
                yield piece


def _fill(model: Model, passages: Iterable[Passage], room: int) -> list[str]:
    """Take passages until ``room`` tokens are used up, and cut the last one."""
    texts = []
    for passage in passages:
        text = passage.text
        tokens = model.tokens(text + _BETWEEN)
        if len(tokens) > room:
            if room >= _FEWEST:
                texts.append(model.text(tokens[:room]).strip())
            break
        texts.append(text)
        room -= len(tokens)
    return texts


def _length(model: Model, text: str) -> int:
    return len(model.tokens(text + _BETWEEN))
