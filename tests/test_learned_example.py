"""The example that trains what a memory keeps: a small version runs, the same on two libraries."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend

FILE = Path(__file__).parents[1] / "docs" / "examples" / "learned_memories.py"


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("learned_memories", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def small(example: Any) -> Any:
    return example.Settings(
        length=16,
        dim=8,
        size=8,
        chunk=4,
        rows=4,
        steps=2,
        policy_steps=1,
        tier_steps=1,
        slot_steps=1,
        asked=20,
    )


def test_documents_tell_what_they_ask_for(example: Any) -> None:
    ids, answers = example.documents(30, 16, np.random.default_rng(0))
    for row, answer in zip(ids.tolist(), answers.tolist(), strict=True):
        first = example.RECORD + (row[-1] - example.QUESTION) * example.VALUES
        assert [t - first for t in row if first <= t < first + example.VALUES] == [answer]


def test_the_example_runs(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    found = example.main("torch", small(example))
    after = {"Expire-Span", "context pruning", "gated memory", "convolution", "slots of MART"}
    assert {"full attention", *(f"{title}, after" for title in after)} <= set(found)
    assert all(right.shape == (20,) for right in found.values())
    assert "against FIFO" in capsys.readouterr().out


@pytest.mark.parametrize("writer", ["Memformer", "TokenTuring", "ICAE"])
def test_each_writer_is_trained(example: Any, writer: str) -> None:
    pytest.importorskip("torch")
    settings = replace(small(example), slot_steps=2)
    found = example.main("torch", settings, only=("slots",), writer=writer)
    assert found[f"slots of {writer}, after"].shape == (20,)


@pytest.mark.parametrize("kind", ["span", "prune", "slots", "gate", "convolution"])
def test_gradients_are_the_same_on_torch_and_jax(example: Any, kind: str) -> None:
    for needed in ("torch", "jax"):
        pytest.importorskip(needed)
    settings, writer = replace(small(example), length=12), at.MART(size=4)
    policy = {"span": at.ExpireSpan(16, 4), "prune": at.DynamicContextPruning()}
    chosen = writer if kind == "slots" else None
    system = example.System(policy.get(kind, at.FIFO()), 8, 8, chosen)
    if kind == "convolution":
        tier = at.Tier(at.KeyValueMemory(4), compress=at.Convolution(example.RATE))
        system = replace(system, behind=tier, size=4, chunk=4)
    elif kind == "gate":
        system = replace(system, behind=at.Tier(at.KeyValueMemory(16), top_k=4), size=4, chunk=4)
    elif kind != "slots":
        system = replace(system, size=16)
    given = example.new_parameters(settings, writer)
    batch = example.documents(4, 12, np.random.default_rng(1))
    loss = partial(example.loss_of, system=system, settings=settings, price=0.1)
    found = {}
    for name in ("torch", "jax"):
        library = backend(name)
        params = {key: library.from_numpy(x) for key, x in given.items()}
        _, slopes = example.gradient_of(name, loss)(params, *map(library.from_numpy, batch))
        found[name] = {key: library.to_numpy(x) for key, x in slopes.items()}
    assert max(np.abs(x).max() for key, x in found["jax"].items() if key.startswith(kind)) > 1e-6
    for key, slope in found["torch"].items():
        np.testing.assert_allclose(found["jax"][key], slope, atol=2e-5, err_msg=key)
