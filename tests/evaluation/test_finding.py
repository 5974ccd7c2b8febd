"""Finding long documents by embeddings, and the ways of reading by pieces."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation import load_tiny, system
from attendre_core.evaluation.controls import PIECEWISE
from attendre_core.evaluation.piecewise import cuts_of, vectors_of
from attendre_core.evaluation.tasks import PassKeys, Retrieval
from attendre_core.evaluation.tasks.finding import gain, rank
from attendre_core.zoo import Model

AROUND = ([7], [8])


class Words:
    """One token for each word."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        ids = [9 + sum(map(ord, word)) % 60 for word in text.split()]
        return [*AROUND[0], *ids, *AROUND[1]] if special else ids


@pytest.fixture(scope="module")
def model() -> Model:
    tiny: Any = load_tiny("prefix-lm")
    return Model(tiny.architecture, tiny.params, attention="prefix", tokenizer=Words())  # type: ignore[arg-type]


def by(name: str, model: Model, rows: Any, window: int) -> Any:
    size = 0 if name in (*PIECEWISE, "full") else 64
    return list(vectors_of(model, rows, AROUND, system(name, size or 8, size // 2), window, 3))


@pytest.mark.parametrize("reads", ["pieces", "half-overlap", "windows"])
def test_every_token_is_kept_once_and_has_enough_around_it(reads: str) -> None:
    for length in (1, 5, 6, 7, 12, 13, 29, 30):
        cuts = cuts_of(reads, length, 6)
        assert cuts[0].start == 0
        assert cuts[-1].stop == length
        assert all(cut.stop - cut.start <= 6 for cut in cuts)
        covered = [i for cut in cuts for i in range(cut.first, cut.last)]
        if reads == "half-overlap":
            assert set(covered) == set(range(length))
        else:
            assert covered == list(range(length))
        assert all(cut.start <= cut.first < cut.last <= cut.stop for cut in cuts)
        if reads == "windows":
            inner = [i for cut in cuts for i in range(cut.first, cut.last) if cut.start > 0]
            starts = {i: cut.start for cut in cuts for i in range(cut.first, cut.last)}
            assert all(i - starts[i] >= 1 for i in inner)


@pytest.mark.parametrize("name", [*PIECEWISE, "attendre"])
def test_with_room_for_a_whole_text_all_ways_are_one(model: Model, name: str) -> None:
    rows = np.random.default_rng(0).integers(9, 70, (4, 25)).tolist()
    full, own = by("full", model, rows, 27), by(name, model, rows, 27)
    for one, other in zip(own, full, strict=True):
        if name != "windows":  # which leaves the special tokens out of the one vector
            np.testing.assert_allclose(one.one, other.one, atol=1e-5)
        span = one.spans if name in ("windows", "attendre") else one.one[None]
        wanted = other.spans if name in ("windows", "attendre") else other.one[None]
        np.testing.assert_allclose(span, wanted, atol=1e-5)


def test_pieces_are_read_as_if_they_were_alone(model: Model) -> None:
    row = np.random.default_rng(1).integers(9, 70, 20).tolist()
    (found,) = by("pieces", model, [row], 10)
    for number, start in enumerate((0, 8, 16)):
        (alone,) = by("full", model, [row[start : start + 8]], 10)
        np.testing.assert_allclose(found.spans[number], alone.one, atol=1e-5)
    mean = found.spans.mean(axis=0)
    np.testing.assert_allclose(found.one, mean / np.linalg.norm(mean), atol=1e-6)


def test_gains() -> None:
    scores = np.asarray([0.5, 0.9, 0.1, 0.5])
    assert [rank(scores, i) for i in range(4)] == [3, 1, 4, 3]
    assert gain(2) == pytest.approx(0.6309, abs=1e-4)


def test_documents_hold_what_is_asked_for_and_nothing_else_that_answers(
    model: Model, tmp_path: Any
) -> None:
    file = tmp_path / "questions.jsonl"
    with file.open("w") as out:
        for i in range(12):
            docs = [{"title": "", "text": f"gold{i} " + "x " * 9, "has_answer": True},
                    {"title": "", "text": f"near{i} " + "y " * 9, "has_answer": False}]  # fmt: skip
            line = {"id": f"q{i}", "question": f"who {i}?", "answers": [f"gold{i}"], "docs": docs}
            out.write(json.dumps(line) + "\n")
    task = Retrieval(data=str(file), limit=4, tokens=45, each=2)
    texts, queries = task.made(model)
    assert len(texts) == 2
    assert [right for _, _, right in queries] == [0, 0, 1, 1]
    for name, _, right in queries:
        assert [f"gold{name[1:]} " in text for text in texts] == [right == 0, right == 1]
        assert not any(f"near{name[1:]} " in text for text in texts)
    items = task.items(model)
    assert {len(row) for row in items[0].documents} == {45}
    assert task.made(model) == (texts, queries)
    with pytest.raises(ConfigError, match="too many for a document"):
        Retrieval(data=str(file), limit=4, tokens=15, each=2).made(model)
    with pytest.raises(ConfigError, match="expected 400"):
        Retrieval(data=str(file), limit=4, tokens=400, each=2).items(model)


def test_pass_keys_are_measured_for_every_query(model: Model) -> None:
    task = PassKeys(limit=6, tokens=60, each=3, window=20)
    items = task.items(model)
    assert [item.right for item in items] == [0, 0, 0, 1, 1, 1]
    for name, size in (("pieces", 0), ("attendre", 32)):
        ((*scores,),) = task.measure(model, items, system(name, size or 8, size // 2), 2)
        assert [each for each, _ in scores] == [item.name for item in items]
        assert all(score["ndcg"] in (1.0, gain(2)) for _, score in scores)
