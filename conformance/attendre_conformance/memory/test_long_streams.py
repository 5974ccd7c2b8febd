"""Laws of long streams: what happens at position ten million is what happens at the start."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import STREAM, texts
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import Shape
from attendre_conformance.options import law
from attendre_conformance.running import few, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

#: Of each kind the first represents all where code is compiled.
SCHEMES = {
    "rotated": (
        at.RoPE(),
        at.RoPE(rotary_dim=2),
        at.RoPE(scaling=at.YaRN(4.0, 64)),
        at.LMInfinite(4, rope=at.RoPE(scaling=at.NTK(8.0))),
    ),
    "clamped": (at.LMInfinite(4), at.LMInfinite(1)),
    "counted": (at.T5Bias(8, 16), at.ALiBi(), at.InCache()),
}


@pytest.mark.parametrize("kind", SCHEMES)
@law()
@given(data=st.data())
def test_positions_of_any_size_are_told_apart(backend: Any, kind: str, data: st.DataObject) -> None:
    """A text that begins at position ten million is read as one that begins at 0.

    Specification, readings 30-34: schemes see differences.
    """
    encoding = data.draw(st.sampled_from(few(backend, SCHEMES[kind])), label="encoding")
    text = data.draw(texts(STREAM, exact=False), label="text")
    first = np.int32(data.draw(st.sampled_from((10**7, 1_000_003)), label="first position"))
    memory = at.KeyValueMemory(6)
    runner = LayerRunner(backend, at.AttendreLayer(memory, at.DataOnlyMemory(2), encoding=encoding))
    state, outputs = runner.run(text, STREAM.seq)
    later, others = runner.run(text.but(position=text.position + first), STREAM.seq)
    one, two = kept(to_numpy(backend, state.kv)), kept(to_numpy(backend, later.kv))
    assert [[p + first for p in row] for row in one] == two, f"{encoding}: keeps {one} and {two}"
    comparing.assert_close(
        by_index(others, STREAM.length),
        by_index(outputs, STREAM.length),
        f"{encoding}, from position {first}: output",
    )


SLOTS = 4
LONG = Shape("long", 1, 1, SLOTS, 1, 1, 4, None)
YES = np.ones((1, 1), dtype=bool)
#: Policies that sum, and scores so large that a step adds less than half of the next number.
SUMS = {
    "logits": (at.LFA(0.0, initial=at.ConstantScore(0.0), score=at.Shift("min")), 2.0**25),
    "weights": (at.H2O(), 2.0**22),
    "counts": (at.LFU(initial=at.ConstantScore(0.0)), 2.0**24),
}


@pytest.mark.parametrize("kind", SUMS)
def test_sums_never_freeze(backend: Any, kind: str) -> None:
    """Scores that a step could not move, rounded to nearest, grow by what is added to them.

    Specification, law-sums.
    """
    policy, large = SUMS[kind]
    steps, rng = 512, np.random.default_rng(7)
    runner = Runner(backend, at.KeyValueMemory(SLOTS, policy), top_k=2)
    key, query = rng.standard_normal((2, 1, steps, 1, 4)).astype(np.float32)
    place = np.arange(steps, dtype=np.int32)[None]

    def grown(start: Any) -> Any:
        state = runner.init(LONG)
        for n in range(SLOTS):
            part = (key[:, n : n + 1], key[:, n : n + 1], place[:, n : n + 1], YES)
            state, _ = runner.function("insert")(state, *map(runner.array, part), {})
        state = state._replace(score=runner.array(start))
        for n in range(steps):
            asked = (query[:, n : n + 1], place[:, n : n + 1], YES)
            state, _ = runner.function("attend")(state, *map(runner.array, asked))
        return to_numpy(backend, state).score.astype(np.float64) - start

    start = np.linspace(large, 1.5 * large, SLOTS, dtype=np.float32)[None]
    found, exact = grown(start), grown(np.zeros_like(start))
    # Four deviations: a step is off by at most half of the distance to the next number.
    bound = 4 * 0.5 * np.sqrt(steps) * float(np.spacing(np.float32(large)))
    assert (exact > bound).any(), f"{policy}: a frozen sum would not be noticed"
    assert (np.abs(found - exact) <= bound).all(), f"{policy}: grew by {found}, expected {exact}"


@pytest.mark.parametrize("above", [2.0**25, -(2.0**28)])
@pytest.mark.parametrize("counts", [False, True], ids=["LFA", "LFU"])
def test_long_sums_decide_as_short_ones(backend: Any, counts: bool, above: float) -> None:
    """A constant under all scores, however large, changes no choice of LFA and LFU.

    Specification, law-sums: scores are levelled before a step's amounts are added.
    """
    lfu, lfa = at.LFU(initial=at.QuotaScore(0.5)), at.LFA(0.0, initial=at.QuantileScore(0.25))
    policy = lfu if counts else lfa
    steps, rng = 48, np.random.default_rng(11)
    runner = Runner(backend, at.KeyValueMemory(SLOTS, policy), top_k=2)
    # Quarters, so that every sum of logits is exact on every library.
    key, query = (rng.integers(-6, 7, (2, 1, steps, 1, 4)) / 4).astype(np.float32)
    states: list[Any] = [runner.init(LONG)]
    before: Any = None
    moves = 0
    for n in range(steps):
        place = np.full((1, 1), n, dtype=np.int32)
        if n == steps // 4:
            score = to_numpy(backend, states[0]).score + np.float32(above)
            states.append(states[0]._replace(score=runner.array(np.round(score / 64) * 64)))
            states[0] = states[0]._replace(score=runner.array(np.round(score / 64) * 64 - above))
        for i, state in enumerate(states):
            new = (key[:, n : n + 1], key[:, n : n + 1], place, YES)
            state, _ = runner.function("insert")(state, *map(runner.array, new), {})
            asked = (query[:, n : n + 1], place, YES)
            states[i], _ = runner.function("attend")(state, *map(runner.array, asked))
        found = [kept(to_numpy(backend, state)) for state in states]
        assert found[0] == found[-1], f"{policy}, step {n}: {found[0]}, later {found[-1]}"
        moves += found[0] != before
        before = found[0]
    assert moves > steps // 2, "nothing was decided"
