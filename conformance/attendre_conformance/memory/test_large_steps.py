"""Laws of steps with thousands of pairs: what is worth a kernel of its own must be the same.

Most laws use few entries and few queries, so that mistakes are easy to read. Kernels that attend
and score in one pass begin where that pays, which is beyond those shapes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.running import compiles, few, from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

#: M, S, K/V heads, query heads and width of a head: 9,216 pairs for each K/V head of a row.
SIZE, SEQ, GROUPS, HEADS, DIM = 96, 48, 2, 4, 8
DECAY = 0.02
#: High enough for new entries to displace others.
START = at.InitialScore(-2.0)
POLICIES = {
    "sum": at.LFA(DECAY, START, "softmax"),
    "mean": at.LRA("mean", START, "softmax"),
    "max": at.LRA("max", START, "softmax", heads="sum"),
}


def chunk(seed: int) -> tuple[Any, ...]:
    """Return keys, values and queries of two rows, with flags; the rows differ in all of them."""
    rng = np.random.default_rng(seed)
    key, value = (rng.standard_normal((2, SEQ, GROUPS, DIM), dtype=np.float32) for _ in range(2))
    query = rng.standard_normal((2, SEQ, HEADS, DIM), dtype=np.float32)
    enough, some = (rng.random((2, SEQ)) < share for share in (0.9, 0.7))
    return key, 4 * value, 2 * query, enough, some


def stepped(backend: Any, memory: Any, causal: bool) -> tuple[Any, Any, Any, Any]:
    """Read four chunks; return the last queries, the state before and after them, the output."""
    state = memory.init(batch=2, heads=GROUPS, head_dim=DIM, xp=backend)

    def insert(state: Any, key: Any, value: Any, at_: Any, valid: Any) -> Any:
        return memory.insert(state, key, value, at_, valid)[0]

    def attend(state: Any, query: Any, at_: Any, valid: Any) -> Any:
        return memory.attend(state, query, at_, valid, causal=causal, encoding=at.RoPE(100.0))

    if compiles(backend):
        insert, attend = backend.compile(insert), backend.compile(attend)
    for number in range(4):
        key, value, query, stored, asked = chunk(number)
        # In each row the positions of a chunk are in another order; some queries come early.
        order = np.random.default_rng(number).permuted(np.tile(np.arange(SEQ), (2, 1)), axis=1)
        place = (order + number * SEQ).astype(np.int32)
        stored, asked = stored | (order == SEQ - 1), asked | (order == SEQ - 1)
        early = place - np.asarray([[0], [SEQ * number + SEQ // 2]], dtype=np.int32)
        state = insert(state, *from_numpy(backend, (key, value, place, stored)))
        before = state
        state, output = attend(state, *from_numpy(backend, (query, early, asked)))
    last = query, early, asked
    return last, *(to_numpy(backend, part) for part in (before, state, output))


def weights_of(last: Any, state: Any, row: int, head: int, causal: bool) -> Any:
    """Return the weights of the valid queries of one query head, (queries, slots), in float64."""
    query, place, asked = (np.asarray(x[row]) for x in last)
    group = head // (HEADS // GROUPS)
    held, at_ = (x[row, group] if x.ndim == 3 else x[row] for x in (state.valid, state.position))
    distance = place[:, None].astype(np.float64) - at_
    angle = distance[..., None] * 100.0 ** (-np.arange(0, DIM, 2) / DIM)
    a, b = np.split(query[:, None, head].astype(np.float64), 2, axis=-1)
    c, d = np.split(state.key[row, group].astype(np.float64), 2, axis=-1)
    turned = np.cos(angle) * (a * c + b * d) + np.sin(angle) * (a * d - b * c)
    sees = asked[:, None] & held & ((distance >= 0) | (not causal))
    raised = np.where(sees, np.exp(turned.sum(axis=-1) / np.sqrt(DIM)), 0.0)
    return raised / np.where(sees.any(axis=1), raised.sum(axis=1), 1.0)[:, None]


def expected(pool: str, last: Any, state: Any, causal: bool) -> tuple[Any, Any]:
    """Return outputs and scores, (2, SEQ, HEADS, DIM) and (2, GROUPS, SIZE), in float64."""
    _, place, asked = last
    output = np.zeros((2, SEQ, HEADS, DIM))
    score = np.zeros((2, GROUPS, SIZE))
    for row in range(2):
        latest = max(int(state.latest_query[row]), int(place[row][asked[row]].max()))
        left = np.where(asked[row], np.exp(DECAY * (place[row] - float(latest))), 0.0)
        for head in range(HEADS):
            group = head // (HEADS // GROUPS)
            weights = weights_of(last, state, row, head, causal)
            output[row, :, head] = weights @ state.value[row, group]
            if pool == "sum":
                score[row, group] += left @ weights
            elif pool == "max":
                score[row, group] += weights.max(axis=0)
            else:
                held, at_ = (x[row] if x.ndim == 2 else x[row, group] for x in state[2:4][::-1])
                sees = asked[row][:, None] & held & (not causal or at_ <= place[row][:, None])
                score[row, group] += weights.sum(axis=0) / np.maximum(sees.sum(axis=0), 1)
        if pool == "sum":
            past = state.score[row] * np.exp(DECAY * (int(state.latest_query[row]) - latest))
            score[row] += past if past.ndim == 2 else past / GROUPS
    return output, score


@pytest.mark.parametrize("per_head", [True, False], ids=["per head", "shared"])
@pytest.mark.parametrize("pool", POLICIES)
def test_pooled_weights_equal_brute_force(backend: Any, pool: str, per_head: bool) -> None:
    """Scores by softmax weights, and the output, of a step with thousands of pairs.

    Specification, readings 8 and 9: every valid query counts, where it may attend.
    """
    memory = at.KeyValueMemory(SIZE, POLICIES[pool], per_head=per_head)
    for causal in few(backend, (True, False)):
        last, before, after, got = stepped(backend, memory, causal)
        output, score = expected(pool, last, before, causal)
        score = score if per_head else score.sum(axis=1)
        _, place, asked = last
        first = np.where(asked, place, 0).max(axis=1).reshape((2,) + (1,) * (score.ndim - 1))
        some = before.valid & (not causal or before.position <= first)
        what = f"{pool}, causal={causal}"
        assert before.evictions.min() > 0, f"{what}: nothing was evicted"
        held = np.sort(before.position, axis=-1)
        assert held.max() == 4 * SEQ - 1, f"{what}: the last entry was refused"
        if per_head:
            assert (held[:, 0] != held[:, 1]).any(), f"{what}: both heads hold the same"
        comparing.assert_close(got[asked], output[asked], f"{what}: output", scale=5)
        want = np.where(some, score, before.score)
        comparing.assert_close(
            np.where(before.valid, after.score, 0.0), np.where(before.valid, want, 0.0),
            f"{what}: score",
        )  # fmt: skip
