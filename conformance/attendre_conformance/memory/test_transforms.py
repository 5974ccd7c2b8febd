"""Transforms: compiled code does what eager code does, for every policy and option."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.cases import CASES, Case, case
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import MHA, Shape, seeded
from attendre_conformance.running import from_numpy

pytestmark = pytest.mark.attendre_profile("transforms")

#: One of each policy, and all options; more would only compile the same code again.
NAMES = (
    "sink",
    "lru",
    "lfu-gqa",
    "lra-last",
    "lra-clip",
    "lfa-decay",
    "visible-lfa",
    "per-head-lru",
)
COMPILED = [one for one in CASES if one.name in NAMES] + [
    case(
        "lfa-softmax",
        MHA,
        at.LFA(1e-3, at.QuotaScore(0.5), score="softmax", hold=True, start="replace"),
        retrieval="approximate",
    ),
    case(
        "gather",
        MHA,
        at.LFU(at.QuantileScore(0.25)),
        retrieval="gather",
        ties=at.RandomTies(3),
        pin=((2, 3),),
        protect_recent=1,
        pinned=True,
    ),
]


@pytest.mark.parametrize("one", COMPILED, ids=[one.name for one in COMPILED])
def test_compiled_equals_eager(backend: Any, one: Case) -> None:
    """A compiled step keeps and evicts the same entries as an eager one, with close numbers.

    Specification, law-same-choices.
    """
    eager = Runner.of(backend, one, compiled=False)
    fast = Runner.of(backend, one, compiled=True)
    for seed, levels in ((0, 17), (1, 3)):
        stream = seeded(
            one.shape,
            np.random.default_rng(seed),
            steps=4,
            levels=levels,
            with_pinned=one.pinned,
        )
        state, quick = eager.init(one.shape), fast.init(one.shape)
        for number, chunk in enumerate(stream.chunks):
            where = f"{one.name}, seed {seed}, step {number}"
            state, out, output = eager.step(state, chunk)
            quick, out2, output2 = fast.step(quick, chunk)
            a, b = eager.numpy(state), fast.numpy(quick)
            assert kept(b) == kept(a), f"{where}: compiled keeps {kept(b)}, eager {kept(a)}"
            for row in range(one.shape.batch):
                for head in range(one.shape.kv_heads) if one.rule.per_head else [None]:
                    want = against_oracle.evicted_items(eager.numpy(out), row, head)
                    got = against_oracle.evicted_items(fast.numpy(out2), row, head)
                    assert got == want, f"{where}: compiled evicts {got}, eager {want}"
            ok = a.valid
            comparing.assert_close(
                np.where(ok, b.score, 0.0), np.where(ok, a.score, 0.0), f"{where}: scores"
            )
            comparing.assert_close(
                fast.numpy(output2), eager.numpy(output), f"{where}: compiled output"
            )


def test_compiled_retrieve_equals_eager(backend: Any) -> None:
    """Compiled retrieval returns the same entries in the same order.

    Specification, reading 17.
    """
    one = case("retrieve", MHA, at.LRU())
    eager = Runner.of(backend, one, compiled=False)
    fast = Runner.of(backend, one, compiled=True)
    stream = seeded(MHA, np.random.default_rng(0), steps=3, levels=3)
    state = eager.init(MHA)
    for number, chunk in enumerate(stream.chunks):
        state, _ = eager.insert(state, chunk)
        want = eager.numpy(eager.retrieve(state, chunk)[1])
        got = fast.numpy(fast.retrieve(state, chunk)[1])
        state, _ = eager.attend(state, chunk)
        comparing.assert_same(got.valid, want.valid, f"step {number}: valid")
        comparing.assert_same(got.position, want.position, f"step {number}: positions")


def test_compiled_queue_equals_eager(backend: Any) -> None:
    """A compiled data-only memory delays as an eager one does.

    Specification, readings 19 and 20.
    """
    queue = at.DataOnlyMemory(size=3)
    shape = Shape("queue", 2, 2, 3, 1, 1, 4, None)
    data = np.zeros((shape.batch, shape.seq, 3), dtype=np.float32)
    state = quick = queue.init(from_numpy(backend, (data,)))

    def run(state: Any, data: Any, valid: Any) -> Any:
        return queue.insert(state, data, valid=valid)

    compiled = backend.compile(run)
    rng = np.random.default_rng(0)
    for step in range(5):
        arrays = (
            from_numpy(backend, (rng.standard_normal(data.shape).astype(np.float32),)),
            backend.from_numpy(rng.random((shape.batch, shape.seq)) < 0.7),
        )
        state, out = run(state, *arrays)
        quick, out2 = compiled(quick, *arrays)
        for name in ("valid", "position"):
            comparing.assert_same(
                np.asarray(backend.to_numpy(getattr(out2, name))),
                np.asarray(backend.to_numpy(getattr(out, name))),
                f"step {step}: evicted.{name}",
            )


def test_compiled_code_refuses_broken_entries(backend: Any) -> None:
    """In compiled code an entry with NaN is handed back and touches nothing else.

    NaN never spreads silently from one slot to others.
    """
    one = case("broken", MHA, at.LFA(0.0))
    fast = Runner.of(backend, one, compiled=True)
    chunk = seeded(MHA, np.random.default_rng(0), steps=1, percent=0).chunks[0]
    chunk.key[0, 1, 0, 0] = np.nan
    state, evicted, output = fast.step(fast.init(MHA), chunk)
    state, evicted, output = fast.numpy(state), fast.numpy(evicted), fast.numpy(output)
    assert np.isfinite(output).all(), f"outputs {output.tolist()}"
    assert np.isfinite(state.score).all(), f"scores {state.score.tolist()}"
    got = evicted.position[0][evicted.valid[0]].tolist()
    want = [int(chunk.position[0, 1])]
    assert got == want, f"handed back {got}, expected the broken entry {want}"
