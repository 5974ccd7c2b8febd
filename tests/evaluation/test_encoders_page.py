"""The guide to encoders says what was measured."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def answers(writing: Any) -> Any:
    return writing.example("far_answers")


def test_documents_of_far_answers_mean_what_they_say(answers: Any) -> None:
    for length, span in ((27, (2, 23)), (500, (50, 400))):
        asked = answers.query(np.random.default_rng(5), length, span, 6)
        assert asked == answers.query(np.random.default_rng(5), length, span, 6)
        for number, one in enumerate(asked.documents):
            event = one.words.index(answers.EVENTS[asked.event])
            name, told = one.words[event - 1], event - 1 + one.distance
            kind = next(kind for kind in answers.KINDS if one.words[told] == kind + name)
            assert span[0] <= abs(one.distance) <= span[1]
            assert (kind == answers.KINDS[asked.kind]) == (number == 0)
            assert one.kinds[event] == answers.KINDS.index(kind)
            # Each word of the query is in each document, and the name is there but twice.
            wanted = answers.KINDS[asked.kind]
            assert any(word.startswith(wanted) for word in one.words)
            assert one.words.count(answers.EVENTS[asked.event]) == 1
            assert sum(word.endswith(name) for word in one.words) == 2


def test_a_reranker_reads_what_fits_alike_however_it_is_read(answers: Any, tmp_path: Any) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    answers.train(tmp_path, steps=3, tokens=64)
    model = answers.at.load(str(tmp_path), backend="torch")
    asked = answers.query(np.random.default_rng(7), 100, (10, 50), 3)
    found = {name: answers.scores(model, asked, name) for name in answers.SYSTEMS}
    for name, scores in found.items():
        np.testing.assert_allclose(scores, found["full attention"], atol=1e-5, err_msg=name)
    assert len(set(found["full attention"])) == 3


def test_of_pieces_the_best_or_the_mean_counts(answers: Any) -> None:
    class Counts:
        """Counts words of the query in each text."""

        def rerank(self, query: str, texts: list[str], batch_size: int) -> list[int]:
            return [sum(word in query.split() for word in text.split()) for text in texts]

    asked = answers.query(np.random.default_rng(7), 500, (50, 400), 2)
    one = answers.scores(Counts(), asked, "pieces of 256, best")
    assert one == [1.0, 1.0], "the event is in one piece"
    assert max(answers.scores(Counts(), asked, "overlapping pieces of 256, mean")) < 1


def test_the_reranker_learned_its_task(answers: Any, writing: Any) -> None:
    """Above what places by chance would give, as the record says."""
    text = (writing.HERE / "encoders" / "reranking.jsonl").read_text(encoding="utf-8")
    found = {one["system"]: one["queries"] for one in map(json.loads, text.splitlines())}
    assert list(found) == list(answers.SYSTEMS)
    chance = np.mean([answers.gain(place) for place in range(1, answers.RANKED + 1)])
    gains = [answers.gain(place) for place, _ in found["full attention"]]
    assert answers.intervals.mean(gains).low > chance
    for queries in found.values():
        assert [distance for _, distance in queries] == [d for _, d in found["full attention"]]
        assert len(queries) >= answers.intervals.ENOUGH
