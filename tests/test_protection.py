"""Entries that never go: sinks, pins and the recent ones, together with every policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend, namespace_of

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
B, S, G, D, SIZE, STEPS = 2, 5, 2, 4, 8, 8


@dataclass(frozen=True)
class Newest(at.Policy):
    """A user's policy that would let the first entries go before all others."""

    def enter(self, stored: at.Stored, new: Any) -> Any:
        xp = namespace_of(stored.score)
        return xp.astype(new.arrival, stored.score.dtype) * 10.0


POLICIES = {
    "FIFO": at.FIFO(),
    "AttentionSink": at.AttentionSink(1),
    "LRU": at.LRU(),
    "LFU": at.LFU(),
    "LRA-last": at.LRA("last"),
    "LRA-max": at.LRA("max"),
    "LRA-mean": at.LRA("mean", score="softmax"),
    "LFA": at.LFA(1e-2, hold=True),
    "LFA-clip": at.LFA(0.0, score=at.Clip(0.0, 1.0)),
    "H2O": at.H2O(),
    "TOVA": at.TOVA(),
    "Random": at.Random(3),
    "KeyDiff": at.KeyDiff(),
    "LagKV": at.LagKV(lag=3),
    "Nexus": at.Nexus(),
    "a user's": Newest(),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def streamed(memory: at.KeyValueMemory, library: Backend, run: Any = None) -> Any:
    """Read 40 positions a row, some of them padding, the first one of row 1 among them."""
    rng = np.random.default_rng(7)
    state = memory.init(batch=B, heads=G, head_dim=D, xp=library, chunk=S)

    def step(state: Any, key: Any, query: Any, position: Any, valid: Any) -> Any:
        state, _ = memory.insert(state, key, key, position, valid)
        return memory.attend(state, query, position, valid, top_k=3)[0]

    step = step if run is None else run(step)
    for number in range(STEPS):
        key, query = rng.normal(size=(2, B, S, G, D)).astype(np.float32)
        valid = rng.random((B, S)) < 0.8
        valid[0, 0], valid[1, 0] = True, number > 0
        position = np.broadcast_to(np.arange(S, dtype=np.int32) + S * number, (B, S)).copy()
        state = step(state, *map(library.from_numpy, (key, query, position, valid)))
    return state


def kept(library: Backend, state: Any, row: int) -> list[list[int]]:
    """Positions that a row holds, for each decision that it makes."""
    position, valid = (library.to_numpy(x) for x in (state.position, state.valid))
    slots = position.shape[-1]
    position, valid = (x.reshape(B, -1, slots)[row] for x in (position, valid))
    return [sorted(p[v].tolist()) for p, v in zip(position, valid, strict=True)]


def first(count: int, row: int) -> list[int]:
    """The first positions of a row that are real."""
    rng, found = np.random.default_rng(7), []
    for number in range(STEPS):
        rng.normal(size=(2, B, S, G, D))
        valid = rng.random((B, S)) < 0.8
        valid[0, 0], valid[1, 0] = True, number > 0
        found += (np.flatnonzero(valid[row]) + S * number).tolist()
    return found[:count]


@pytest.mark.parametrize("per_head", [False, True])
@pytest.mark.parametrize("present", ["compete", "visible"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_sinks_stay_with_every_policy(policy: at.Policy, present: Any, per_head: bool) -> None:
    """The first real entries of each row, wherever its padding is."""
    numpy = backend("numpy")
    memory = at.KeyValueMemory(SIZE, policy, present=present, per_head=per_head, sinks=3)
    assert memory.all_sinks == 3
    state = streamed(memory, numpy)
    assert int(state.evictions.min()) > 0
    for row in range(B):
        for head in kept(numpy, state, row):
            assert head[:3] == first(3, row)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("policy", ["LFA", "Random"])
def test_sinks_stay_on_every_library(library: Backend, policy: str) -> None:
    memory = at.KeyValueMemory(SIZE, POLICIES[policy], sinks=3)
    state, plain = streamed(memory, library), streamed(memory, backend("numpy"))
    for row in range(B):
        assert kept(library, state, row) == kept(backend("numpy"), plain, row)
        assert kept(library, state, row)[0][:3] == first(3, row)


@pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
def test_sinks_stay_in_compiled_code(library: Backend) -> None:
    memory = at.KeyValueMemory(SIZE, at.LFA(), sinks=3)
    state, plain = streamed(memory, library, library.compile), streamed(memory, backend("numpy"))
    for row in range(B):
        assert kept(library, state, row) == kept(backend("numpy"), plain, row)
        assert kept(library, state, row)[0][:3] == first(3, row)


def test_sinks_of_the_memory_are_those_of_the_policy() -> None:
    """First in, first out with sinks is AttentionSink; of both, the larger number counts."""
    numpy = backend("numpy")
    named = streamed(at.KeyValueMemory(SIZE, at.AttentionSink(4)), numpy)
    for memory in (
        at.KeyValueMemory(SIZE, at.FIFO(), sinks=4),
        at.KeyValueMemory(SIZE, at.AttentionSink(2), sinks=4),
        at.KeyValueMemory(SIZE, at.AttentionSink(4), sinks=1),
    ):
        assert memory.all_sinks == 4
        for one, other in zip(streamed(memory, numpy), named, strict=True):
            assert one is other is None or (one == other).all()
    usual = streamed(at.KeyValueMemory(SIZE, at.LFA()), numpy)
    none = streamed(at.KeyValueMemory(SIZE, at.LFA(), sinks=0), numpy)
    assert (usual.position == none.position).all()


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_sinks_pins_and_recent_entries_stay_together(policy: at.Policy) -> None:
    numpy = backend("numpy")
    memory = at.KeyValueMemory(SIZE, policy, sinks=2, protect_recent=2, pin=((17, 19), (21, 22)))
    state = streamed(memory, numpy)
    for row in range(B):
        (held,) = kept(numpy, state, row)
        real = first(99, row)
        pinned = [place for place in real if place in (17, 18, 21)]
        assert set(held) >= {*real[:2], *real[-2:], *pinned}
        assert len(held) == SIZE


def test_scores_of_newcomers_count_sinks_as_the_policy_does() -> None:
    """Sinks compete with nobody, but are entries like others to the mean of all scores."""
    plain = at.KeyValueMemory(SIZE, at.LFA())
    state = streamed(plain, backend("numpy"))
    x = np.ones((B, 1, G, D), np.float32)
    scores = []
    for memory in (plain, at.KeyValueMemory(SIZE, at.LFA(), sinks=3)):
        after, evicted = memory.insert(state, x, x)
        both = np.concatenate([after.score, evicted.score], axis=1)
        newest = np.concatenate([after.arrival, evicted.arrival], axis=1) == state.clock[:, None]
        scores.append(both[newest].tolist())
    assert scores[0] == scores[1]


def test_a_trace_says_that_nothing_but_sinks_is_left() -> None:
    layer = at.AttendreLayer(at.KeyValueMemory(4, at.LFA(), sinks=4), trace=True)
    x = np.ones((1, 6, 1, 2), np.float32)
    with pytest.warns(at.ChunkTooLongWarning):
        _, out = layer.step(layer.init(batch=1, heads=1, head_dim=2), at.Chunk(x, x, x))
    assert sorted(out.trace.evicted[out.trace.reason > 0].tolist()) == [4, 5]


def test_a_queue_keeps_the_sinks_of_its_policy(library: Backend) -> None:
    queue = at.DataOnlyMemory(4, at.AttentionSink(2))
    numbers = np.arange(3, dtype=np.int32)[None]
    state = queue.init(library.from_numpy(numbers))
    gone = []
    for start in (0, 3, 6):
        state, evicted = queue.insert(state, library.from_numpy(numbers + start))
        gone += library.to_numpy(evicted.data)[library.to_numpy(evicted.valid)].tolist()
    assert library.to_numpy(queue.get_all(state).data).tolist() == [[0, 1, 7, 8]]
    assert gone == [2, 3, 4, 5, 6]


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"sinks": -1}, r"sinks is -1, expected a whole number of at least 0"),
            ({"sinks": 2.0}, r"sinks is 2.0"),
            ({"sinks": True}, r"sinks is True"),
            ({"sinks": 9}, r"9 sinks and 0 protected recent entries do not fit into size 8"),
            ({"sinks": 5, "protect_recent": 4}, r"5 sinks and 4 protected"),
            ({"policy": at.AttentionSink(6), "protect_recent": 3}, r"6 sinks and 3 protected"),
            ({"pin": (0, 3)}, r"pin is \(0, 3\), expected ranges .*pin=\(\(0, 32\),\)"),
            ({"pin": [(0, 3)]}, r"pin is \[\(0, 3\)\], expected ranges"),
            ({"pin": ((3, 3),)}, r"with start < stop"),
            ({"pin": ((0, 3, 5),)}, r"expected ranges"),
            ({"pin": ((0, None),)}, r"expected ranges"),
            ({"pin": 3}, r"pin is 3, expected ranges"),
        ],
    )
    def test_what_cannot_be_protected(self, options: Any, message: str) -> None:
        with pytest.raises(at.ConfigError, match=message):
            at.KeyValueMemory(SIZE, **options)

    def test_room_for_sinks_is_part_of_a_budget(self) -> None:
        with pytest.raises(at.ConfigError, match="less than the smallest such memory"):
            at.KeyValueMemory.within_bytes(1000, heads=2, head_dim=8, sinks=64)
        memory = at.KeyValueMemory.within_bytes("64 KiB", heads=2, head_dim=8, sinks=64)
        assert memory.sinks == 64
        assert memory.size > 64
