"""Questions with passages, before they are a prompt for a certain model."""

from __future__ import annotations

import re
from typing import NamedTuple

from attendre_core.evaluation.benchmarks.normalisation import contains

__all__ = ["Example", "Passage", "as_written", "split"]

#: Words of a passage, when a document is split; that is how the passages of open-domain question
#: answering are made.
_WORDS = 100


class Passage(NamedTuple):
    """A piece of evidence, and whether the answer stands in it."""

    title: str
    text: str
    has_answer: bool


class Example(NamedTuple):
    """A question, its right answers (the first one is the main one), and its evidence."""

    name: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]


def split(passage: Passage, answers: tuple[str, ...]) -> list[Passage]:
    """Cut a document into passages of about a hundred words; short ones stay whole.

    Examples
    --------
    >>> long = Passage("title", "word " * 250 + "end", True)
    >>> [(len(p.text.split()), p.has_answer) for p in split(long, ("end",))]
    [(100, False), (100, False), (51, True)]
    """
    words = passage.text.split()
    if len(words) <= _WORDS * 3 // 2:
        return [passage]
    pieces = [" ".join(words[i : i + _WORDS]) for i in range(0, len(words), _WORDS)]
    return [Passage(passage.title, text, contains(text, answers)) for text in pieces]


def as_written(example: Example) -> tuple[str, ...]:
    """Return the answers, first the one that the evidence writes most often.

    Aliases come in no useful order, odd spellings among them. The one whose likelihood is
    measured has to be the one that a reader of the evidence would give: whole words, the same
    capitals, the longer one of two that are equally frequent, and the first one if none occurs.

    Examples
    --------
    >>> evidence = (Passage("", "Argentina borders Chile. Argentina is large.", True),)
    >>> as_written(Example("1", "Where?", ("Arxintina", "ARG", "Argentina"), evidence))
    ('Argentina', 'Arxintina', 'ARG')
    """
    text = "\n".join(passage.text for passage in example.passages)

    def seen(answer: str) -> tuple[int, int]:
        count = len(re.findall(rf"(?<!\w){re.escape(answer)}(?!\w)", text)) if answer else 0
        return count, len(answer) if count else 0

    first = max(example.answers, key=seen, default="")
    return (first, *(answer for answer in example.answers if answer != first))
