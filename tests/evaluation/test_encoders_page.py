"""The guide to encoders says what was measured."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest


@pytest.fixture(scope="module")
def writing(beside: dict[str, ModuleType]) -> Any:
    return beside["write_encoders"]


@pytest.fixture(scope="module")
def example(writing: Any) -> Any:
    return writing.example()


def test_the_guide_says_what_was_measured(writing: Any) -> None:
    text = writing.PAGE.read_text(encoding="utf-8")
    shown = {match[2] for match in writing.BLOCK.finditer(text)}
    files = {file.stem for file in (writing.HERE / "encoders").iterdir()}
    assert shown == files
    assert text == writing.written(text), "run docs/results/write_encoders.py"


def test_the_picture_shows_what_was_found(writing: Any) -> None:
    drawn = (writing.HERE / "encoders" / "picture.txt").read_text(encoding="utf-8")
    picture = writing.DRAWN.read_text(encoding="utf-8")
    assert picture == writing.svg(drawn), "run docs/results/write_encoders.py"
    assert picture.count(">product<") == drawn.count("[product")


def test_documents_of_far_entities_mean_what_they_say(example: Any) -> None:
    rng = np.random.default_rng(3)
    far = 0
    for length, nearest, farthest in ((62, 4, 62), (500, 50, 400)):
        sample = example.document(rng, length, nearest, farthest)
        words = [example.VOCABULARY[i] for i in sample.ids]
        assert example.spans_of(example.labels_of(sample)) == {e[:3] for e in sample.entities}
        for one in sample.entities:
            assert words[one.stop - 1] == example.END
            told = words[one.start + one.distance]
            assert told == example.KINDS[one.kind] + words[one.start]
            assert nearest <= abs(one.distance) <= farthest
        far += len(sample.entities)
        # No name outside of an entity has a Unit near behind it.
        inside = {i for e in sample.entities for i in range(e.start, e.stop)}
        for place, word in enumerate(words):
            if word in example.NAMES and place not in inside:
                assert example.END not in words[place : place + 6]
    assert far > 5


def test_f1_counts_what_is_missed_and_what_is_wrong(example: Any) -> None:
    sample = example.Document([0] * 20, [example.Entity(2, 5, 0, 9), example.Entity(8, 12, 1, -4)])
    right = example.labels_of(sample)
    assert example.f1(example.counted(sample, right)) == 1
    assert example.f1(example.counted(sample, [0] * 20)) == 0
    wrong = [*right[:8], *[0] * 4, 1, 2, *right[14:]]
    assert example.f1(example.counted(sample, wrong)) == pytest.approx(2 * 1 / (2 + 1 + 1))
