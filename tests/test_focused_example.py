"""Focused Transformer in docs/examples/focused.py, against its own formula."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendre_core.backend import backend

FOLDER = Path(__file__).parents[1] / "docs" / "examples"


@pytest.fixture(scope="module")
def example() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(FOLDER)
        for name in ("focused", "learned_memories"):
            patched.delitem(sys.modules, name, raising=False)
        import focused

        yield focused
        for name in ("focused", "learned_memories"):
            sys.modules.pop(name, None)


def softmax(logits: Any) -> Any:
    weight = np.exp(logits - logits.max())
    return weight / weight.sum()


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("seen", [pytest.param(1, marks=pytest.mark.thorough("jax")), 3])
def test_focused_transformer_is_its_formula(example: Any, library: str, seen: int) -> None:
    """Row b attends to its present, causally, and to the earlier contexts of rows b to b + d - 1.

    In one softmax; the contexts of other documents have no positions and are all visible. Tested
    with an unlimited memory, it is the same; with a top K it is the K best.
    """
    pytest.importorskip(library)
    found, rows = backend(library), 5
    told, asks, topic, _ = example.contexts_of(rows, np.random.default_rng(0))
    given = example.new_parameters(seed=4)
    width, top_k = example.DIM // example.HEADS, 4
    params = {name: found.from_numpy(x) for name, x in given.items()}
    batch = [found.from_numpy(x) for x in (told, asks, topic)]
    everything = seen * told.shape[1] + asks.shape[1]
    answers = {}
    for k in (None, everything, top_k):
        ask = partial(example.ask, seen=seen, top_k=k)
        if library == "jax":  # else each operation is compiled by itself
            ask = found.compile(ask)
        answers[k] = found.to_numpy(ask(params, *batch))

    def part(ids: Any, row: int, name: str) -> Any:
        x = given["embed"][ids[row]].astype(np.float64) + given["topic"][topic[row]]
        return (x @ given[name]).reshape(-1, example.HEADS, width)

    for b in range(rows):
        visible = [(told, (b + n) % rows) for n in range(seen)] + [(asks, b)]
        keys, values = (
            np.concatenate([part(ids, row, name) for ids, row in visible])
            for name in ("key", "value")
        )
        query = part(asks, b, "query")[-1]
        for k, got in answers.items():
            outputs = []
            for h in range(example.HEADS):
                logits = keys[:, h] @ query[h] / np.sqrt(width)
                best = np.argsort(-logits)[: k or None]
                outputs.append(softmax(logits[best]) @ values[best, h])
            want = np.concatenate(outputs) @ given["answer"]
            np.testing.assert_allclose(got[b], want, atol=2e-5, err_msg=f"row {b}, top K {k}")


def test_training_uses_the_negatives(example: Any) -> None:
    """The loss with other documents differs, and its gradients are the same on torch and JAX."""
    for needed in ("torch", "jax"):
        pytest.importorskip(needed)
    batch = example.contexts_of(6, np.random.default_rng(1))
    slopes: dict[str, Any] = {}
    for name in ("torch", "jax"):
        library = backend(name)
        params = {key: library.from_numpy(x) for key, x in example.new_parameters().items()}
        losses = [
            example.gradient_of(name, partial(example.loss_of, seen=seen))(
                params, *map(library.from_numpy, batch)
            )
            for seen in (1, 3)
        ]
        assert abs(float(losses[0][0]) - float(losses[1][0])) > 1e-3
        slopes[name] = {key: library.to_numpy(x) for key, x in losses[1][1].items()}
    for key, slope in slopes["torch"].items():
        assert np.abs(slope).max() > 1e-6, key
        np.testing.assert_allclose(slopes["jax"][key], slope, atol=2e-5, err_msg=key)
