"""Laws of ties: equal scores have a right answer, the same on every library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import options
from attendre_conformance.memory.cases import case
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import MHA, Chunk, Shape, Stream, scattered, streams
from attendre_conformance.options import law
from attendre_core.backend import backend as look_up

pytestmark = pytest.mark.attendre_profile("laws")

TINY = Shape("tiny", options.rows, 2, 2, 1, 1, 4, None)


def chunk_of(scores: Any, positions: list[int]) -> Chunk:
    """Build a chunk of two entries whose logits are ``scores``: keys are (x, x, x, x).

    ``scores`` holds two numbers for each row, or two for all rows.
    """
    wide = np.broadcast_to(np.asarray(scores, dtype=np.float32), (TINY.batch, TINY.seq))
    key = np.repeat(wide / 2, TINY.head_dim).reshape(TINY.batch, TINY.seq, 1, TINY.head_dim)
    place = np.tile(np.asarray(positions, dtype=np.int32), (TINY.batch, 1))
    valid = np.ones((TINY.batch, TINY.seq), dtype=bool)
    return Chunk(
        key=key,
        value=key.copy(),
        position=place,
        valid=valid,
        query=np.ones_like(key),
        query_position=place,
        query_valid=valid,
    )


def numbers_for_rows(number: Any) -> Any:
    """Return a strategy of one ``number`` for each row."""
    return st.tuples(*[number] * TINY.batch)


@law()
@given(data=st.data())
def test_two_stored_scores_tie_with_the_newcomer(backend: Any, data: st.DataObject) -> None:
    """With two stored scores mu - sigma is the smaller one: a tie, so the older entry goes.

    Specification, law-ties: with exactly two stored scores c=1 makes a tie that rounding decides.
    """
    policy = data.draw(st.sampled_from((at.LRA("last"), at.LFA(0.0))), label="policy")
    number = st.floats(-50, 50, width=32).filter(lambda x: x == 0 or abs(x) >= 1e-3)
    different = st.tuples(number, number).filter(lambda x: x[0] != x[1])
    first = data.draw(numbers_for_rows(different), label="scores of every row")
    runner = Runner.of(backend, case("tie", TINY, policy))
    state = runner.init(TINY)
    state, _, _ = runner.step(state, chunk_of(first, [0, 1]))
    scores = runner.numpy(state.score).tolist()
    state, _ = runner.insert(state, chunk_of([1.0, 1.0], [2, 3]))
    for b, got in enumerate(kept(runner.numpy(state))):
        winner = int(np.argmax(first[b]))
        # The newcomers tie with the lower score; both are younger, so the lower stored one goes,
        # and of the two newcomers the older is refused.
        assert got == sorted([winner, 3]), (
            f"{policy}, row {b}: stored scores {scores[b]}, kept {got}, expected "
            f"{sorted([winner, 3])}"
        )


@law()
@given(data=st.data())
def test_equal_scores_are_first_in_first_out(backend: Any, data: st.DataObject) -> None:
    """When all stored scores are equal sigma is 0, newcomers tie, and the oldest goes.

    Specification, law-ties: likewise all-equal scores; reading 15.
    """
    sigmas = data.draw(st.sampled_from((0.0, 1.0, -1.0)), label="c")
    number = st.floats(-50, 50, width=32, allow_subnormal=False)
    level = data.draw(numbers_for_rows(number), label="score of every row")
    steps = data.draw(st.integers(2, 3), label="steps")
    one = case("equal", TINY, at.LRA("max", initial=at.InitialScore(sigmas)))
    runner = Runner.of(backend, one)
    state = runner.init(TINY)
    for step in range(steps):
        places = [2 * step, 2 * step + 1]
        state, _, _ = runner.step(state, chunk_of([[x, x] for x in level], places))
        for b, got in enumerate(kept(runner.numpy(state))):
            assert got == places, (
                f"c={sigmas}, all scores {level[b]!r}, step {step}, row {b}: kept {got}, "
                f"expected {places}"
            )


TIED = case("random-ties", MHA, at.LFU(initial=at.ConstantScore(0.0)))
SEEDS = (0, 12345)


@law()
@given(data=st.data())
def test_random_ties_are_the_same_everywhere(backend: Any, data: st.DataObject) -> None:
    """Seeded random ties fall the same way on every backend.

    Specification, reading 15: seeded random as an option.
    """
    seed = data.draw(st.sampled_from(SEEDS), label="seed")
    stream = data.draw(streams(MHA), label="stream")
    one = TIED.but(ties=at.RandomTies(seed))
    got, _, _ = Runner.of(backend, one).run(stream)
    want, _, _ = Runner.of(look_up("numpy"), one).run(stream)
    assert kept(got) == kept(want), (
        f"seed {seed}: {backend.name} keeps {kept(got)}, numpy keeps {kept(want)}"
    )


@law()
@given(data=st.data())
def test_random_ties_do_not_see_padding(backend: Any, data: st.DataObject) -> None:
    """Seeded random ties fall the same way whatever the padding and the row.

    Specification, readings 15 and 16.
    """
    seed = data.draw(st.sampled_from(SEEDS), label="seed")
    stream = data.draw(streams(MHA), label="stream")
    choices = np.asarray([[0, 2, 4], [1, 2, 3], [0, 1, 4], [2, 3, 4]])
    places = choices[np.arange(MHA.batch) % len(choices)]
    chunks = tuple(scattered(chunk, places, 5) for chunk in stream.chunks)
    runner = Runner.of(backend, TIED.but(ties=at.RandomTies(seed)))
    plain, _, _ = runner.run(stream)
    wide, _, _ = runner.run(Stream(MHA, chunks, True))
    assert kept(plain) == kept(wide), (
        f"seed {seed}: kept {kept(wide)} with padding, {kept(plain)} without"
    )


def test_random_ties_depend_on_the_seed(backend: Any) -> None:
    """Different seeds choose differently among equals, and never prefer the worse entry.

    Specification, reading 15.
    """
    one = case("seeds", TINY, at.LRA("max"))
    chunks = [chunk_of([1.0, 1.0], [2 * n, 2 * n + 1]) for n in range(6)]
    found = set()
    for seed in range(4):
        runner = Runner.of(backend, one.but(ties=at.RandomTies(seed)))
        state, _, _ = runner.run(Stream(TINY, tuple(chunks), True))
        found.add(tuple(kept(state)[0]))
    assert len(found) > 1, f"four seeds all kept {found}"
    first, second = (
        replace(
            chunk_of([1.0, 1.0], places), score=np.asarray([scores] * TINY.batch, dtype=np.float32)
        )
        for places, scores in (([0, 1], [0.25, 1.0]), ([2, 3], [0.75, 0.5]))
    )
    for seed in range(4):
        runner = Runner.of(backend, one.but(ties=at.RandomTies(seed)))
        state, _ = runner.insert(runner.init(TINY), first)
        state, _ = runner.insert(state, second)
        got = kept(runner.numpy(state))[0]
        assert got == [1, 2], f"seed {seed}: kept {got}, but 1 and 2 have the highest scores"
