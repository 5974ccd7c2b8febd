"""The data-only memory keeps its slots in the order in which they go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import Backend, backend

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
SIZE, LENGTHS = 5, (3, 1, 4, 7, 2, 5)
POLICIES = {
    "FIFO": at.FIFO(),
    "sinks": at.AttentionSink(2),
    "scores": at.LRA(),
    "random": at.Random(1),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Backend:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def chunks() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Draw numbers, which of them are real, and scores with ties."""
    rng, start, drawn = np.random.default_rng(2), 0, []
    for length in LENGTHS:
        numbers = np.broadcast_to(np.arange(start, start + length, dtype=np.int32), (2, length))
        valid = rng.random((2, length)) < 0.8
        score = rng.integers(0, 4, size=(2, length)).astype(np.float32)
        drawn.append((numbers.copy(), valid, score))
        start += length
    return drawn


def rank(policy: str, arrival: int, score: float) -> Any:
    """What an entry is compared by, lowest first."""
    if policy == "sinks":
        return (arrival < 2, arrival)
    if policy == "scores":
        return (score, arrival)
    if policy == "random":
        order = at.RandomTies(1).order(np.asarray([arrival], np.int32))
        return (order.astype(np.float32).item(), arrival)
    return arrival


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("policy", POLICIES)
def test_what_goes_and_what_stays_is_in_the_order_of_its_rank(
    library: Backend, policy: str
) -> None:
    queue = at.DataOnlyMemory(SIZE, POLICIES[policy])
    state = queue.init(library.from_numpy(chunks()[0][0]))
    held: list[list[Any]] = [[], []]
    arrived = [0, 0]
    for numbers, valid, score in chunks():
        given = map(library.from_numpy, (numbers, valid, score))
        data, flags, scores = given
        state, gone = queue.insert(state, data, valid=flags, score=scores)
        seen = {name: library.to_numpy(getattr(state, name)) for name in ("data", "valid")}
        for row in range(2):
            for number, real, worth in zip(numbers[row], valid[row], score[row], strict=True):
                if real:
                    held[row].append((rank(policy, arrived[row], worth), int(number)))
                    arrived[row] += 1
            held[row].sort()
            lost = [number for _, number in held[row][: max(len(held[row]) - SIZE, 0)]]
            held[row] = held[row][-SIZE:]
            out = library.to_numpy(gone.data)[row][library.to_numpy(gone.valid)[row]]
            assert out.tolist() == lost
            kept = [number for _, number in held[row]]
            assert seen["data"][row][seen["valid"][row]].tolist() == kept
            assert not seen["valid"][row][: SIZE - len(kept)].any(), "empty slots come first"
        everything = queue.get_all(state)
        shown = library.to_numpy(everything.data)[library.to_numpy(everything.valid)].tolist()
        assert shown == [n for row in held for n in sorted(number for _, number in row)]


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["torch", "jax"], indirect=True)
@pytest.mark.parametrize("policy", ["FIFO", "scores"])
def test_compiled(library: Backend, policy: str) -> None:
    queue = at.DataOnlyMemory(SIZE, POLICIES[policy])

    def insert(state: Any, data: Any, valid: Any, score: Any) -> Any:
        return queue.insert(state, data, valid=valid, score=score)

    run = library.compile(insert)
    state = plain = queue.init(library.from_numpy(chunks()[0][0]))
    for given in chunks():
        if given[0].shape[1] in (3, 7):  # few lengths: each is compiled for
            arrays = [library.from_numpy(x) for x in given]
            state, gone = run(state, *arrays)
            plain, wanted = insert(plain, *arrays)
            for one, other in zip((*state, *gone), (*plain, *wanted), strict=True):
                assert (library.to_numpy(one) == library.to_numpy(other)).all()


def test_an_order_that_was_changed_by_hand_is_restored(library: Backend) -> None:
    """States of older versions kept their slots in no order."""
    queue = at.DataOnlyMemory(4)
    numbers = np.arange(4, dtype=np.int32)[None]
    state, _ = queue.insert(queue.init(library.from_numpy(numbers)), library.from_numpy(numbers))
    order = library.from_numpy(np.asarray([2, 0, 3, 1], np.int64))
    mixed = type(state)(*(library.xp.take(x, order, axis=1) for x in state[:5]), state.clock)
    state, gone = queue.insert(mixed, library.from_numpy(numbers[:, :2] + 4))
    assert library.to_numpy(gone.data).tolist() == [[0, 1]]
    assert library.to_numpy(state.data).tolist() == [[2, 3, 4, 5]]
