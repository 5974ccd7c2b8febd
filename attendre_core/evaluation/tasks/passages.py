"""Questions with passages of evidence, before they become prompts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.evaluation.tasks.normalisation import contains

__all__ = ["Example", "Passage", "as_written", "split"]

#: Words per passage when a document is split, as usual in open-domain question answering.
_WORDS = 100


class Passage(NamedTuple):
    """A piece of evidence, and whether it contains the answer."""

    title: str
    text: str
    has_answer: bool


class Example(NamedTuple):
    """A question, its right answers with the main one first, and its evidence."""

    name: str
    question: str
    answers: tuple[str, ...]
    passages: tuple[Passage, ...]


def split(passage: Passage, answers: tuple[str, ...]) -> list[Passage]:
    """Cut a document into passages of up to 100 words; one of up to 150 words stays whole.

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


def as_written(answers: Sequence[str], passages: Sequence[Passage]) -> tuple[str, ...]:
    """Put the answer that is most frequent in the evidence first, spelled as there.

    The aliases of a dataset are in no useful order and include odd spellings, but the likelihood
    is measured for the first one. So it should be the answer that a reader of the evidence would
    give: whole words, in the most frequent spelling of the evidence, the longer of two equally
    frequent answers. If none occurs, the order stays.

    Examples
    --------
    >>> evidence = [Passage("", "The eucalyptus is a tree. A eucalyptus is large.", True)]
    >>> as_written(("Gum tree", "EUCALYPTUS", "tree"), evidence)
    ('eucalyptus', 'Gum tree', 'EUCALYPTUS', 'tree')
    """
    text = "\n".join(passage.text for passage in passages)
    candidates: list[tuple[int, int, str]] = []
    for answer in answers:
        pattern = rf"(?<!\w){re.escape(answer)}(?!\w)"
        spellings = Counter(re.findall(pattern, text, re.IGNORECASE)) if answer else Counter()
        if spellings:
            candidates.append((spellings.total(), len(answer), spellings.most_common(1)[0][0]))
    if not candidates:
        return tuple(answers)
    _, _, first = max(candidates, key=lambda candidate: candidate[:2])
    return (first, *(answer for answer in answers if answer != first))
