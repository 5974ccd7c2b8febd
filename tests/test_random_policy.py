"""A random sample of everything read: every entry as likely, the same on every library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def sample(
    seed: int, length: int, size: int, chunk: int, library: Backend | None = None, **options: Any
) -> list[int]:
    """Read a stream and return the positions that stay."""
    found = backend("numpy") if library is None else library
    memory = at.KeyValueMemory(size, at.Random(seed), **options)
    state = memory.init(batch=1, heads=1, head_dim=1, xp=found, chunk=chunk)
    for start in range(0, length, chunk):
        x = found.from_numpy(np.ones((1, min(chunk, length - start), 1, 1), np.float32))
        state, _ = memory.insert(state, x, x)
        state, _ = memory.attend(state, x)
    state, _ = memory.settle(state)
    position, valid = (found.to_numpy(x) for x in (state.position, state.valid))
    return sorted(position[valid].tolist())


def test_every_entry_is_as_likely_as_any_other() -> None:
    """Of 400 entries 80 stay: in 200 samples each tenth holds its share, within 5 deviations."""
    seeds, tenths = 200, np.zeros(10)
    for seed in range(seeds):
        found = sample(seed, 400, 80, 50)
        assert len(found) == 80
        tenths += np.bincount(np.asarray(found) // 40, minlength=10)
    # Drawn without replacement: 200 times 8 of each 40, with the variance of such a draw.
    deviation = (seeds * 80 * 0.1 * 0.9 * (400 - 80) / 399) ** 0.5
    assert np.abs(tenths - seeds * 8).max() < 5 * deviation


@pytest.mark.thorough("jax")
def test_a_seed_is_a_sample(library: Backend) -> None:
    numpy = sample(3, 60, 12, 5)
    assert sample(3, 60, 12, 5, library) == numpy
    assert sample(4, 60, 12, 5, library) != numpy


@pytest.mark.parametrize("chunk", [1, 7, 60])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_it_is_the_same_whatever_the_chunk_length(chunk: int, present: Any) -> None:
    assert sample(3, 60, 12, chunk, present=present) == sample(3, 60, 12, 5)


def test_a_shorter_stream_is_sampled_from_the_same_order() -> None:
    """What stays of a longer stream stayed of a shorter one, if it was read by then."""
    longer, shorter = sample(3, 100, 12, 5), sample(3, 60, 12, 5)
    assert {place for place in longer if place < 60} <= set(shorter)


def test_attention_changes_nothing_and_rows_draw_alike() -> None:
    memory = at.KeyValueMemory(4, at.Random(1))
    rng = np.random.default_rng(0)
    states = []
    for strength in (0.0, 5.0):
        state = memory.init(batch=2, heads=1, head_dim=2)
        for _ in range(5):
            x = strength * rng.normal(size=(2, 3, 1, 2)).astype(np.float32)
            state, _ = memory.insert(state, x, x)
            state, _ = memory.attend(state, x)
        assert not state.score.any()
        states.append(np.sort(state.position))
    assert (states[0] == states[1]).all()
    assert (states[0][0] == states[0][1]).all()


def test_it_is_compared_by_value_and_works_in_a_queue() -> None:
    assert at.Random(3) == at.Random(seed=3) != at.Random(4)
    assert hash(at.Random(3)) == hash(at.Random(3))
    queue = at.DataOnlyMemory(12, at.Random(3))
    numbers = np.arange(60, dtype=np.int32)[None]
    state, gone = queue.insert(queue.init(numbers), numbers)
    kept = queue.get_all(state).data[0].tolist()
    assert kept == sample(3, 60, 12, 5)
    assert sorted(kept + gone.data[gone.valid].tolist()) == list(range(60))
