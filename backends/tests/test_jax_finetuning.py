"""The example that trains through the memory: a small version of it learns."""

import importlib.util
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

FILE = Path(__file__).parents[2] / "docs" / "examples" / "finetune_jax.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("finetune_jax", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def test_documents_are_those_of_the_other_framework(example):
    """One question, one record that answers it, and an answer expected only afterwards."""
    ids, answers = example.documents(40, 96, np.random.default_rng(0), every=16)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        (question,) = (t for t in row if example.QUESTION <= t < example.RECORD)
        first = example.RECORD + (question - example.QUESTION) * example.VALUES
        (told,) = (i for i, t in enumerate(row) if first <= t < first + example.VALUES)
        ends = [place for place, t in enumerate(row) if t == example.ANS]
        assert ends == list(range(15, 96, 16))
        value = example.VALUE + (row[told] - example.RECORD) % example.VALUES
        expected = {e: value for e in ends if e > told}
        assert {e: w for e, w in enumerate(wanted) if w != example.NOTHING} == expected


@pytest.mark.thorough
def test_it_learns(example):
    """Losses fall below chance in both parts, and the second one teaches the memory's length."""
    settings = example.Settings(
        short_steps=160, short_length=24, long_steps=40, long_length=96, asked=100,
        memory=replace(example.MEMORY, kv_size=20, chunk=8),
    )  # fmt: skip
    architecture = example.new_architecture(settings.dim)
    params = attendre_jax.random_parameters(architecture, jax.random.key(0))
    accuracy = example.tester(architecture, settings)
    chance = math.log(example.VALUES)
    params, short = example.train_short(architecture, params, settings)
    assert np.mean(short[-20:]) < 0.5 * chance
    before = accuracy(params, 96)
    params, long = example.train_through_memory(architecture, params, settings)
    assert np.mean(long[-10:]) < 0.9 * np.mean(long[:10])
    assert accuracy(params, 96) > before
