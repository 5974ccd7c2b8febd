"""The controls keep exactly what they say, on every library."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation.controls import FirstOnly, PinnedMemory, RandomSample


def kept(policy: at.Policy, size: int, length: int, chunk: int, library: str = "numpy") -> set[int]:
    memory = at.KeyValueMemory(size=size, policy=policy)
    on = at.backend(library)
    state = memory.init(1, 1, 2, xp=on)
    rng = np.random.default_rng(0)
    for start in range(0, length, chunk):
        count = min(chunk, length - start)
        key = on.from_numpy(rng.standard_normal((1, count, 1, 2)).astype(np.float32))
        place = on.from_numpy(np.arange(start, start + count, dtype=np.int32)[None])
        state, _ = memory.insert(state, key, key, position=place)
        state, _ = memory.attend(state, key, position=place)
    valid = np.asarray(on.to_numpy(state.valid))
    return set(np.asarray(on.to_numpy(state.position))[valid].tolist())


def test_first_only_never_changes_once_full() -> None:
    assert kept(FirstOnly(), 7, 50, 4) == set(range(7))
    assert kept(FirstOnly(), 7, 5, 4) == set(range(5))


def test_a_sample_does_not_depend_on_the_chunks() -> None:
    whole = kept(RandomSample(), 8, 200, 200)
    assert len(whole) == 8
    assert whole == kept(RandomSample(), 8, 200, 1) == kept(RandomSample(), 8, 200, 13)
    assert whole != kept(RandomSample(seed=1), 8, 200, 13)


def test_a_sample_favours_no_place() -> None:
    counts = np.zeros(4)
    for seed in range(300):
        for place in kept(RandomSample(seed), 8, 80, 40):
            counts[place // 20] += 1
    # 600 expected in each quarter, give or take the error of a few hundred draws.
    assert np.all(np.abs(counts - 600) < 110), counts


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax", "array_api_strict"])
@pytest.mark.parametrize("policy", [FirstOnly(), RandomSample(seed=5)], ids=repr)
def test_libraries_agree(policy: at.Policy, library: str) -> None:
    pytest.importorskip(library)
    assert kept(policy, 9, 60, 8, library) == kept(policy, 9, 60, 8)


def test_a_pinned_question_stays_and_the_rest_is_first_in_first_out() -> None:
    memory = PinnedMemory(at.FIFO(), kv_size=16, chunk=8, pinned=4).kv_memory(0)
    state = memory.init(1, 1, 2)
    ones = np.ones((1, 8, 1, 2), dtype=np.float32)
    for _ in range(6):
        state, _ = memory.insert(state, ones, ones)
    assert sorted(state.position[0].tolist()) == [0, 1, 2, 3, *range(36, 48)]
