"""Bytes before and after, reports, the frozen-memory warning."""

import warnings

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves


def stream(memory, state, steps, chunk=4, heads=2, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        key = rng.normal(size=(state.key.shape[0], chunk, heads, dim)).astype(np.float32)
        state, _ = memory.insert(state, key, key)
        state, _ = memory.attend(state, key)
    return state


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_estimate_is_what_a_state_takes(dtype, per_head, present):
    memory = at.KeyValueMemory(size=7, per_head=per_head, present=present)
    aux = {"document": np.zeros((3, 1), dtype=np.int32)}
    state = memory.init(batch=3, heads=2, head_dim=4, dtype=dtype, value_dim=5, aux=aux, chunk=3)
    estimate = memory.nbytes(3, 2, 4, dtype, value_dim=5, aux_bytes=4, chunk=3)
    assert estimate == sum(leaf.nbytes for leaf in tree_leaves(state))


def test_budget_in_bytes_is_used_up_and_never_exceeded():
    spec = {"heads": 8, "head_dim": 64, "dtype": "float16", "batch": 2}
    memory = at.KeyValueMemory.within_bytes("3 MB", policy=at.LFA(), **spec)
    larger = at.KeyValueMemory(memory.size + 1)
    assert memory.policy == at.LFA()
    assert memory.nbytes(2, 8, 64, "float16") <= 3_000_000 < larger.nbytes(2, 8, 64, "float16")


@pytest.mark.parametrize("budget", [0, "lots", "12 parsecs", "-5 MB", "1.2.3 MB", "100 B"])
def test_senseless_budgets_are_refused(budget):
    with pytest.raises(at.ConfigError, match="byte"):
        at.KeyValueMemory.within_bytes(budget, heads=8, head_dim=64)


def test_data_only_estimate():
    example = (np.zeros((2, 1, 3)), {"flag": np.zeros((2, 1), dtype=bool)})
    queue = at.DataOnlyMemory(size=5)
    assert queue.nbytes(example) == sum(leaf.nbytes for leaf in tree_leaves(queue.init(example)))


def test_report_counts_and_warns_only_when_frozen():
    moving = at.KeyValueMemory(size=8, policy=at.FIFO())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = moving.report(stream(moving, moving.init(batch=2, heads=2, head_dim=4), 5))
    assert report.used == (8, 8)
    assert report.inserted == (20, 20)
    assert report.evicted == (12, 12)
    assert report.admitted_share == (1.0, 1.0)

    frozen = at.KeyValueMemory(size=8, policy=at.LFA(initial=at.InitialScore(50.0)))
    state = stream(frozen, frozen.init(batch=2, heads=2, head_dim=4), 5)
    with pytest.warns(at.FrozenMemoryWarning, match="admits only 0%"):
        report = frozen.report(state)
    assert sorted(state.position[0].tolist()) == list(range(8))
    assert report.admitted_share == (0.0, 0.0)


@pytest.mark.parametrize("initial", [at.QuantileScore(0.1), at.QuotaScore(0.5)])
def test_quantile_and_quota_cannot_freeze(initial):
    memory = at.KeyValueMemory(size=16, policy=at.LFA(initial=initial))
    state = memory.init(batch=1, heads=2, head_dim=4)
    for step in range(30):
        # Old entries are attended to ever more: mu - sigma would refuse everything new.
        key = np.full((1, 4, 2, 4), 10.0 if step < 4 else 0.1, dtype=np.float32)
        state, _ = memory.insert(state, key, key)
        state, _ = memory.attend(state, np.full((1, 4, 2, 4), 1.0, dtype=np.float32))
    least = {0.1: 2 / 4, 0.5: 2 / 4}[getattr(initial, "quantile", getattr(initial, "share", None))]
    assert float(memory.admitted_share(state)[0]) >= least - 1e-6


def test_visible_report_counts_the_chunk_that_was_cut():
    memory = at.KeyValueMemory(size=4, policy=at.FIFO(), present="visible")
    state = stream(memory, memory.init(batch=1, heads=2, head_dim=4, chunk=4), 3)
    assert state.position.shape == (1, 8)
    assert memory.report(state).used == (8,)
    state, evicted = memory.settle(state)
    assert int(evicted.valid.sum()) == 4
    assert memory.report(state).used == (4,)
