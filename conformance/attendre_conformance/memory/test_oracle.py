"""Everything a memory does, held against the paper in plain Python loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.cases import (
    CORE,
    EVERY,
    KEYS,
    OPTIONS,
    POLICIES,
    VARIANTS,
    WEIGHED,
    Case,
    case_and_stream,
)
from attendre_conformance.memory.running import Runner
from attendre_conformance.memory.streams import Stream, seeded
from attendre_conformance.options import law
from attendre_conformance.oracle import OracleMemory

pytestmark = pytest.mark.attendre_profile("eager")

FAMILIES = {
    "fifo-and-sinks": [c for c in POLICIES if c.rule.policy.kind in ("fifo", "sink")],
    "lru-and-lfu": [c for c in POLICIES if c.rule.policy.kind in ("lru", "lfu")],
    "lra": [c for c in POLICIES if c.rule.policy.kind == "lra"],
    "lfa": [c for c in POLICIES if c.rule.policy.kind == "lfa"],
    "scores": [c for c in VARIANTS if c.rule.policy.score != ("logits",)],
    "initial-scores": [c for c in VARIANTS if c.rule.policy.score == ("logits",)],
    "visible": [c for c in OPTIONS if c.rule.present == "visible"],
    "other-options": [c for c in OPTIONS if c.rule.present != "visible"],
    "keys": KEYS,
}


def compare(
    backend: Any, case: Case, stream: Stream, compiled: bool | None = None, final: bool = False
) -> int:
    """Run a stream on both sides and compare everything; returns the number of steps compared."""
    runner = Runner.of(backend, case, compiled)
    shape = stream.shape
    oracle = OracleMemory(case.rule, shape.batch, shape.kv_heads, exact_logits=stream.exact)
    state = runner.init(shape)
    for number, chunk in enumerate(stream.chunks):
        where = f"{case.name}, step {number}"
        state, evicted, output = runner.step(state, chunk)
        want_evicted = against_oracle.oracle_insert(oracle, chunk)
        want = against_oracle.oracle_attend(oracle, chunk, case.top_k, case.causal)
        if oracle.gap < comparing.NEAR:
            return number
        now = runner.numpy(state)
        against_oracle.assert_evicted(
            runner.numpy(evicted), want_evicted, case.rule.per_head, where
        )
        against_oracle.assert_kept(now, oracle, where)
        against_oracle.assert_scores(now, oracle, where)
        against_oracle.assert_outputs(runner.numpy(output), want, where)
    return len(stream.chunks)


@pytest.mark.parametrize("family", FAMILIES)
@law()
@given(data=st.data())
def test_stream_equals_oracle(backend: Any, family: str, data: st.DataObject) -> None:
    """Kept index sets (ties included), evicted multisets, scores and outputs are the oracle's.

    Specification, readings 1-18; law-same-choices.
    """
    case, stream = data.draw(case_and_stream(FAMILIES[family]), label="case and stream")
    compared = compare(backend, case, stream)
    event("compared to the end" if compared == len(stream.chunks) else "cut short by a near-tie")


@law()
@given(data=st.data())
def test_generic_floats_equal_oracle(backend: Any, data: st.DataObject) -> None:
    """The same for floats that are not dyadic, up to decisions that rounding may tip.

    Specification, readings 1-18.
    """
    case, stream = data.draw(case_and_stream(CORE, exact=False), label="case and stream")
    compared = compare(backend, case, stream)
    event("compared to the end" if compared == len(stream.chunks) else "cut short by a near-tie")


@pytest.mark.parametrize("case", WEIGHED, ids=[case.name for case in WEIGHED])
@pytest.mark.parametrize("exact", [True, False], ids=["dyadic", "generic"])
def test_policies_that_read_weights_equal_oracle(backend: Any, case: Case, exact: bool) -> None:
    """The same for the published scores of weights and values; few steps are near-ties.

    Specification, law-same-choices.
    """
    rng = np.random.default_rng(1)
    compared = total = 0
    for mode in ("own", "late", "free"):
        for percent in (0, 40):
            options = {"mode": mode, "late": 2 if mode == "late" else 0, "percent": percent}
            stream = seeded(case.shape, rng, steps=6, exact=exact, **options)
            total += len(stream.chunks)
            compared += compare(backend, case, stream)
    assert compared >= 0.9 * total, f"{case.name}: only {compared} of {total} steps were compared"


@pytest.mark.parametrize("case", KEYS, ids=[case.name for case in KEYS])
def test_policies_that_read_keys_equal_oracle(backend: Any, case: Case) -> None:
    """The same for the published scores of keys, eager and compiled; few steps are near-ties.

    Specification, law-same-choices.
    """
    compared = total = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        mode, late = (("own", 0), ("late", 5), ("free", 0))[seed % 3]
        stream = seeded(case.shape, rng, steps=7, exact=False, mode=mode, late=late)
        total += len(stream.chunks)
        compared += compare(backend, case, stream, compiled=None if seed else False)
    assert compared >= 0.9 * total, f"{case.name}: only {compared} of {total} steps were compared"


@law()
@given(data=st.data())
def test_eager_stream_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """The same without any compiling, on every backend.

    Specification, law-same-choices.
    """
    cases = [EVERY["lfa-0"], EVERY["lru"]]
    case, stream = data.draw(case_and_stream(cases), label="case and stream")
    compare(backend, case, stream, compiled=False)


@law()
@given(data=st.data())
def test_given_scores_equal_oracle(backend: Any, data: st.DataObject) -> None:
    """A score given at insertion takes the place of the initial score.

    Specification, reading 5.
    """
    cases = [EVERY["lfa-0"], EVERY["lra-sum"], EVERY["sink"]]
    case, stream = data.draw(case_and_stream(cases, with_score=True), label="case and stream")
    compare(backend, case, stream)


RETRIEVING = [EVERY[name] for name in ("lru", "lru-top-1", "lfu-gqa", "per-head-lru")]


@law()
@given(data=st.data())
def test_retrieved_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """Retrieve returns the top K per query and head, best first, ties to the later arrival.

    Specification, reading 17.
    """
    case, stream = data.draw(case_and_stream(RETRIEVING), label="case and stream")
    runner = Runner.of(backend, case)
    oracle = OracleMemory(case.rule, stream.shape.batch, stream.shape.kv_heads)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        where = f"{case.name}, step {number}"
        state, _ = runner.insert(state, chunk)
        against_oracle.oracle_insert(oracle, chunk)
        state, retrieved = runner.retrieve(state, chunk)
        want = against_oracle.oracle_attend(oracle, chunk, case.top_k, case.causal)
        if oracle.gap < comparing.NEAR:
            return
        against_oracle.assert_retrieved(runner.numpy(retrieved), want, where)
        against_oracle.assert_scores(runner.numpy(state), oracle, where + ", after retrieve")


@law()
@given(data=st.data())
def test_admitted_share_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """The admitted share is the share of the evictions that made room for something new."""
    cases = [EVERY[n] for n in ("lra-last", "lfa-0", "lra-sum", "visible-lra", "sink")]
    case, stream = data.draw(case_and_stream(cases), label="case and stream")
    runner = Runner.of(backend, case)
    oracle = OracleMemory(case.rule, stream.shape.batch, stream.shape.kv_heads)
    state = runner.init(stream.shape)
    for chunk in stream.chunks:
        state, _, _ = runner.step(state, chunk)
        against_oracle.oracle_insert(oracle, chunk)
        against_oracle.oracle_attend(oracle, chunk, case.top_k, case.causal)
    if oracle.gap < comparing.NEAR:
        return
    share = runner.numpy(case.memory.admitted_share(state))
    want = np.asarray([row[0].admitted_share() for row in oracle.rows])
    comparing.assert_close(share, want, f"{case.name}: admitted share of every row")


def test_near_ties_are_rare(backend: Any) -> None:
    """Most decisions are compared: near-ties cut few streams short.

    About this suite: a comparison that always gives up proves nothing.
    """
    rng = np.random.default_rng(0)
    for case in CORE:
        compared = total = 0
        for _ in range(6):
            stream = seeded(case.shape, rng, with_pinned=case.pinned)
            total += len(stream.chunks)
            compared += compare(backend, case, stream)
        assert compared >= 0.7 * total, (
            f"{case.name}: only {compared} of {total} steps were compared, the others came after "
            "a near-tie"
        )
