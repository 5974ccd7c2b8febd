"""The example that trains through the memory: a small version of it learns."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FILE = Path(__file__).parents[2] / "docs" / "examples" / "finetune_torch.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("finetune_torch", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def place_of_answer(example, row):
    """Find the one record that answers the one question."""
    (question,) = (t for t in row if example.QUESTION <= t < example.RECORD)
    first = example.RECORD + (question - example.QUESTION) * example.VALUES
    (place,) = (i for i, t in enumerate(row) if first <= t < first + example.VALUES)
    return place


def test_documents_hold_one_answer_that_is_told_before_it_is_asked_for(example):
    ids, answers = example.documents(40, 96, np.random.default_rng(0), every=16)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        told = place_of_answer(example, row)
        ends = [place for place, t in enumerate(row) if t == example.ANS]
        assert ends == list(range(15, 96, 16))
        value = example.VALUE + (row[told] - example.RECORD) % example.VALUES
        expected = {e: value for e in ends if e > told}
        assert {e: w for e, w in enumerate(wanted) if w != example.NOTHING} == expected
        assert wanted[-1] != example.NOTHING


def test_it_learns(example):
    """Losses fall below chance in both parts, and the second one teaches the memory's length."""
    settings = example.Settings(
        short_steps=160, short_length=24, long_steps=40, long_length=96, asked=100,
        memory=replace(example.MEMORY, kv_size=20, chunk=8),
    )  # fmt: skip
    model = example.new_model(settings.dim)
    chance = math.log(example.VALUES)
    short = example.train_short(model, settings)
    assert np.mean(short[-20:]) < 0.5 * chance
    before = example.accuracy(model, settings.memory, 96, settings)
    long = example.train_through_memory(model, settings)
    assert np.mean(long[-10:]) < 0.9 * np.mean(long[:10])
    assert example.accuracy(model, settings.memory, 96, settings) > before


def test_gradients_reach_the_record_through_the_memory(example):
    settings = example.Settings()
    model = example.new_model(settings.dim)
    model.memory = replace(settings.memory, kv_size=64)
    ids, answers = example.documents(1, 48, np.random.default_rng(3), every=16)
    place = place_of_answer(example, ids[0].tolist())
    told = int(ids[0, place])

    def reached(detach_every):
        loss = example.cross_entropy(
            model(ids, detach_every=detach_every).logits[:, -1], answers[:, -1]
        )
        (grad,) = torch.autograd.grad(loss, model.weights.tree()["embedding"])
        return bool(grad[told].any())

    assert place < 32  # in a chunk before the last
    assert reached(None)
    assert not reached(1)
