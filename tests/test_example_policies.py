"""The policies of docs/examples/policies.py keep what plain NumPy loops say, on every library."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend

FILE = Path(__file__).parents[1] / "docs" / "examples" / "policies.py"
spec = importlib.util.spec_from_file_location("example_policies", FILE)
policies = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = policies  # dataclasses look their module up
spec.loader.exec_module(policies)

SIZE, CHUNK, STEPS, HEADS, DIM = 12, 5, 6, 2, 4
WINDOW = 3
#: position -> what a loop knows of an entry: its key, value and score.
Entry = dict[str, np.ndarray]


def norm_of(entry: Entry) -> float:
    return float(np.mean([np.sqrt(sum(x * x for x in head)) for head in entry["value"]]))


def unlike_mean(entry: Entry, everyone: list[Entry]) -> float:
    """Minus the cosine to the mean of the normalised keys, averaged over heads."""
    total = 0.0
    for head in range(HEADS):
        keys = [other["key"][head] / np.linalg.norm(other["key"][head]) for other in everyone]
        mean = sum(keys) / len(keys)
        key = entry["key"][head]
        total -= float(key @ mean / np.linalg.norm(key) / np.linalg.norm(mean))
    return total / HEADS


def recent_weight(entries: list[Entry], queries: np.ndarray) -> list[float]:
    """Softmax weights of the last WINDOW queries, summed, averaged over heads."""
    totals = [0.0] * len(entries)
    for head in range(HEADS):
        for query in queries[-WINDOW:, head]:
            logits = [float(query @ entry["key"][head]) / np.sqrt(DIM) for entry in entries]
            weights = np.exp(np.asarray(logits) - max(logits))
            for i, weight in enumerate(weights / weights.sum()):
                totals[i] += float(weight) / HEADS
    return totals


def start_norm(entry: Entry, stored: list[Entry], new: list[Entry]) -> float:
    return norm_of(entry)


def start_unlike(entry: Entry, stored: list[Entry], new: list[Entry]) -> float:
    return unlike_mean(entry, [*stored, *new])


def start_mean(entry: Entry, stored: list[Entry], new: list[Entry]) -> float:
    """One deviation below the mean of the stored scores: what Policy.enter does by default."""
    scores = [float(other["score"]) for other in stored]
    return float(np.mean(scores) - np.std(scores)) if scores else 0.0


def after_nothing(entries: list[Entry], queries: np.ndarray) -> list[float]:
    return [float(entry["score"]) for entry in entries]


def after_unlike(entries: list[Entry], queries: np.ndarray) -> list[float]:
    return [unlike_mean(entry, entries) for entry in entries]


CASES: dict[str, tuple[at.Policy, Callable[..., float], Callable[..., list[float]]]] = {
    "value-norm": (policies.ValueNorm(), start_norm, after_nothing),
    "key-diff": (policies.KeyDiff(), start_unlike, after_unlike),
    "recent-weight": (policies.RecentWeight(WINDOW), start_mean, recent_weight),
}


def loop(name: str, data: np.ndarray) -> list[list[int]]:
    """Return the positions kept after each step, by the rule in plain loops."""
    _, start, after = CASES[name]
    held: dict[int, Entry] = {}
    kept = []
    for step in range(STEPS):
        key, value, query = data[step]
        new = {
            CHUNK * step + i: {"key": key[i], "value": value[i], "score": np.zeros(())}
            for i in range(CHUNK)
        }
        stored, arriving = list(held.values()), list(new.values())
        scores = [start(entry, stored, arriving) for entry in arriving]
        for entry, score in zip(arriving, scores, strict=True):
            entry["score"] = np.asarray(score)
        pool = {**held, **new}
        # Of equal scores the older entry goes.
        best = sorted(pool, key=lambda at_: (float(pool[at_]["score"]), at_))[-SIZE:]
        held = {at_: pool[at_] for at_ in sorted(best)}
        entries = list(held.values())
        for entry, score in zip(entries, after(entries, query), strict=True):
            entry["score"] = np.asarray(score)
        kept.append(sorted(held))
    return kept


@pytest.mark.parametrize("library", ["numpy", "array_api_strict", "torch", "jax"])
@pytest.mark.parametrize("name", CASES)
def test_example_policy_keeps_what_a_loop_keeps(name: str, library: str) -> None:
    pytest.importorskip(library)
    found = backend(library)
    rng = np.random.default_rng(3)
    data = rng.standard_normal((STEPS, 3, 2, CHUNK, HEADS, DIM), dtype=np.float32)
    memory = at.KeyValueMemory(SIZE, policy=CASES[name][0])
    state = memory.init(batch=2, heads=HEADS, head_dim=DIM, xp=found)
    wanted = [loop(name, data[:, :, row]) for row in range(2)]
    for step in range(STEPS):
        key, value, query = (found.from_numpy(array) for array in data[step])
        state, _ = memory.insert(state, key, value)
        state, _ = memory.attend(state, query)
        position, valid = found.to_numpy(state.position), found.to_numpy(state.valid)
        for row in range(2):
            assert sorted(position[row][valid[row]].tolist()) == wanted[row][step], (step, row)


@pytest.mark.parametrize("name", CASES)
def test_example_policy_works_per_head(name: str) -> None:
    """With one head, deciding per head is deciding per token."""
    rng = np.random.default_rng(5)
    memories = [
        at.KeyValueMemory(SIZE, policy=CASES[name][0], per_head=per_head)
        for per_head in (False, True)
    ]
    states = [memory.init(batch=1, heads=1, head_dim=DIM) for memory in memories]
    for _ in range(STEPS):
        key, value, query = rng.standard_normal((3, 1, CHUNK, 1, DIM), dtype=np.float32)
        for i, memory in enumerate(memories):
            states[i], _ = memory.insert(states[i], key, value)
            states[i], _ = memory.attend(states[i], query)
    token, head = (set(state.position.ravel().tolist()) for state in states)
    assert token == head


@pytest.mark.parametrize("name", CASES)
def test_example_policy_ignores_what_padding_holds(name: str) -> None:
    rng = np.random.default_rng(7)
    memory = at.KeyValueMemory(SIZE, policy=CASES[name][0])
    states = [memory.init(batch=1, heads=HEADS, head_dim=DIM) for _ in range(2)]
    valid = np.arange(CHUNK)[None] != 2
    for _ in range(STEPS):
        key, value, query = rng.standard_normal((3, 1, CHUNK, HEADS, DIM), dtype=np.float32)
        for i in range(2):
            if i:
                key, value = key.copy(), value.copy()
                key[:, 2], value[:, 2] = np.nan, np.inf
            states[i], _ = memory.insert(states[i], key, value, valid=valid)
            states[i], _ = memory.attend(states[i], query, valid=valid)
    assert np.array_equal(states[0].position, states[1].position)
    assert np.array_equal(states[0].score, states[1].score)
