"""Policies whose scores are positions, where positions are larger than float32 counts."""

import numpy as np
import pytest

import attendre_core as at

FAR = 2**24


def kept(first, dtype, stride=1, top_k=2):
    """Read 60 entries that begin at a position, and tell which are left, counted from there."""
    # An order statistic; mu - c sigma is snapped to stored scores within rounding of float32.
    memory = at.KeyValueMemory(8, at.LRU(initial=at.QuantileScore(0.25)))
    rng = np.random.default_rng(3)
    state = memory.init(batch=1, heads=1, head_dim=4, dtype=dtype)
    for step in range(15):
        key, value, query = rng.standard_normal((3, 1, 4, 1, 4)).astype(dtype)
        place = (first + stride * (4 * step + np.arange(4)))[None].astype(np.int32)
        state, _ = memory.insert(state, key, value, place)
        state, _ = memory.attend(state, query, place, top_k=top_k)
    scores = state.score[0].astype(np.float64) - first
    return sorted((state.position[0] - first).tolist()), scores


def test_float64_tells_all_positions_apart():
    near, _ = kept(0, "float64")
    far, scores = kept(FAR, "float64")
    assert far == near
    assert any(score % 2 == 1 for score in scores), "no odd position was used: proves nothing"


def test_float32_tells_every_second_position_apart_beyond_its_limit():
    near, _ = kept(0, "float32", stride=2)
    far, _ = kept(FAR, "float32", stride=2)
    assert far == near
    _, scores = kept(FAR, "float32", stride=1)
    assert all(score % 2 == 0 for score in scores), "documented as lost"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_decay_sees_differences_alone(dtype):
    def scores(first):
        memory = at.KeyValueMemory(6, at.LFA(decay=0.1))
        rng = np.random.default_rng(5)
        state = memory.init(batch=1, heads=1, head_dim=4, dtype=dtype)
        for step in range(6):
            key, value, query = rng.standard_normal((3, 1, 3, 1, 4)).astype(dtype)
            place = (first + 3 * step + np.arange(3))[None].astype(np.int32)
            state, _ = memory.insert(state, key, value, place)
            state, _ = memory.attend(state, query, place)
        return state.score

    assert np.array_equal(scores(0), scores(2**30))
