"""Sums of 2**24 and more: the same entries are kept as with scores of float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend

POLICIES = {
    "LFA mean": (at.LFA(0.0, initial=at.InitialScore(0.0)), None),
    "LFA quantile": (at.LFA(0.0, initial=at.QuantileScore(0.25)), None),
    "LFA softmax": (at.LFA(0.0, score="softmax", initial=at.QuantileScore(0.25)), None),
    "LFU": (at.LFU(initial=at.InitialScore(0.0)), 3),
}
SIZE = 8


def kept(policy: Any, top_k: int | None, large: float, library: str, dtype: str, steps: int) -> Any:
    """Fill a memory, make its scores large, read on one token at a time; return what is kept."""
    found = backend(library)
    rng = np.random.default_rng(2)
    memory = at.KeyValueMemory(SIZE, policy)
    state = memory.init(batch=1, heads=2, head_dim=4, xp=library, dtype=dtype)

    def array(numbers: Any) -> Any:
        return found.from_numpy(numbers.astype(np.float32).astype(dtype))

    key = rng.standard_normal((1, SIZE, 2, 4))
    for n in range(SIZE):
        one = array(key[:, n : n + 1])
        state, _ = memory.insert(state, one, one)
    score = (large * (1 + rng.integers(0, 2**20, (1, SIZE)) / 2**20)).astype(np.float32)
    state = state._replace(score=found.from_numpy(score.astype(dtype)))
    pages = []
    for _ in range(steps):
        new, asked = rng.standard_normal((2, 1, 1, 2, 4))
        state, _ = memory.insert(state, array(new), array(new))
        state, _ = memory.attend(state, array(3 * asked + new), top_k=top_k)
        pages.append(np.sort(found.to_numpy(state.position)[0]).tolist())
    return pages


@pytest.mark.parametrize("large", [2.0**24, 2.0**28])
@pytest.mark.parametrize("name", POLICIES)
def test_float32_keeps_what_float64_keeps(name: str, large: float) -> None:
    policy, top_k = POLICIES[name]
    short = kept(policy, top_k, large, "numpy", "float32", 80)
    assert short == kept(policy, top_k, large, "numpy", "float64", 80)
    assert sum(a != b for a, b in pairwise(short)) > 50, "nothing moved"


@pytest.mark.thorough("jax")  # `add_up` alone is compared on it, too (tests/test_kernels.py)
@pytest.mark.parametrize("library", ["array_api_strict", "torch", "jax"])
def test_every_library_keeps_the_same(library: str) -> None:
    pytest.importorskip(library)
    for policy, top_k in (POLICIES["LFA quantile"], POLICIES["LFU"]):
        want = kept(policy, top_k, 2.0**25, "numpy", "float64", 12)
        assert kept(policy, top_k, 2.0**25, library, "float32", 12) == want, policy


def test_a_frozen_sum_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounded to nearest and not levelled, float32 keeps other entries."""
    monkeypatch.setattr("attendre_core.ops.levelled", lambda score, amounts, counted: score)
    monkeypatch.setattr(
        "attendre_core.ops.add_up", lambda total, amounts, *counters: total + amounts
    )
    policy, top_k = POLICIES["LFA quantile"]
    long = kept(policy, top_k, 2.0**25, "numpy", "float32", 60)
    assert long != kept(policy, top_k, 2.0**25, "numpy", "float64", 60)
