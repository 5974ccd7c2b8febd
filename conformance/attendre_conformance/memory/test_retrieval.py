"""Laws of retrieval: different ways to the same top K."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.memory.cases import CORE, EVERY, case, case_and_stream
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import Shape, streams
from attendre_conformance.options import law

pytestmark = pytest.mark.attendre_profile("laws")

TOP_K = [EVERY[name] for name in ("lru", "lru-top-1", "lfu-gqa", "per-head-lru")]


def assert_runs_agree(got: Any, want: Any, what: str) -> None:
    """Compare two results of `Runner.run`: kept sets exactly, scores and outputs closely."""
    state, _, outputs = got
    state2, _, outputs2 = want
    assert kept(state) == kept(state2), f"{what}: kept {kept(state)}, expected {kept(state2)}"
    ok = np.asarray(state2.valid)
    comparing.assert_close(
        np.where(ok, state.score, 0.0), np.where(ok, state2.score, 0.0), f"{what}: scores"
    )
    for number, (a, b) in enumerate(zip(outputs, outputs2, strict=True)):
        comparing.assert_close(a, b, f"{what}: output of step {number}")


WHOLE = [EVERY["lru"], EVERY["lfu-gqa"], EVERY["lfa-0"]]


@law()
@given(data=st.data())
def test_top_k_of_everything_is_no_top_k(backend: Any, data: st.DataObject) -> None:
    """K = M retrieves everything: the same as no top K.

    Specification, law-top-k.
    """
    one, stream = data.draw(case_and_stream(WHOLE), label="case and stream")
    everything = Runner(backend, one.memory, None, one.causal).run(stream)
    largest = Runner(backend, one.memory, one.rule.size, one.causal).run(stream)
    assert_runs_agree(largest, everything, f"{one.name}, top_k={one.rule.size}")


@law()
@given(data=st.data())
def test_gather_is_threshold(backend: Any, data: st.DataObject) -> None:
    """Gathering K keys per query, as the paper does, equals selecting by threshold and masking.

    Offer both, prove them equal; Specification, reading 17.
    """
    exact = data.draw(st.booleans(), label="dyadic numbers")
    one, stream = data.draw(case_and_stream(TOP_K, exact=exact), label="case and stream")
    threshold = Runner.of(backend, one).run(stream)
    gather = Runner.of(backend, one.but(retrieval="gather")).run(stream)
    assert_runs_agree(gather, threshold, f"{one.name}, gather")


@law()
@given(data=st.data())
def test_attend_is_softmax_over_retrieved(backend: Any, data: st.DataObject) -> None:
    """Attend gives the softmax of the retrieved similarities over the retrieved values.

    Specification, reading 17: the similarity is reused.
    """
    one, stream = data.draw(case_and_stream(TOP_K), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        after_retrieve, found = runner.retrieve(state, chunk)
        state, output = runner.attend(state, chunk)
        found = runner.numpy(found)
        logits = np.where(found.valid, found.similarity.astype(np.float64), -np.inf)
        top = np.where(found.valid.any(-1), logits.max(-1, initial=-1e30), 0.0)
        weight = np.where(found.valid, np.exp(logits - top[..., None]), 0.0)
        weight = weight / np.maximum(weight.sum(-1, keepdims=True), 1e-30)
        value = np.where(found.valid[..., None], found.value, 0.0)
        want = np.einsum("bqhk,bqhkd->bqhd", weight, value)
        comparing.assert_close(runner.numpy(output), want, f"{one.name}, step {number}: output")
        comparing.assert_close(
            runner.numpy(after_retrieve.score),
            runner.numpy(state.score),
            f"{one.name}, step {number}: scores after retrieve, against those after attend",
        )


@law()
@given(data=st.data())
def test_index_names_the_slot(backend: Any, data: st.DataObject) -> None:
    """The index of a retrieved entry names the slot in which it is stored."""
    one, stream = data.draw(case_and_stream(TOP_K[:2], max_steps=3), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        entries = one.memory.entries(runner.numpy(state))
        state, found = runner.retrieve(state, chunk)
        found = runner.numpy(found)
        group = stream.shape.heads // stream.shape.kv_heads
        for b, i, h, k in np.argwhere(found.valid):
            slot = int(found.index[b, i, h, k])
            where = f"{one.name}, step {number}, row {b}, query {i}, head {h}, rank {k}"
            assert entries.position[b, slot] == found.position[b, i, h, k], (
                f"{where}: slot {slot} holds position {entries.position[b, slot]}, retrieved "
                f"{found.position[b, i, h, k]}"
            )
            assert np.array_equal(entries.key[b, slot, h // group], found.key[b, i, h, k]), (
                f"{where}: the key differs from the one in slot {slot}"
            )


#: One query and one head a step: the counts of LFU tell which entries were selected.
APPROXIMATE = case(
    "approximate",
    Shape("approximate", options.rows, 3, 6, 1, 1, 4, 3),
    at.LFU(at.ConstantScore(0.0)),
)


@law()
@given(data=st.data())
def test_approximate_is_a_subset_of_exact(backend: Any, data: st.DataObject) -> None:
    """Approximate retrieval selects only what belongs to the top K, and never nothing.

    An approximate mode with a stated recall. (Entries equal to the K-th best
    belong to the top K as much as it does.)
    """
    exact = data.draw(st.booleans(), label="dyadic numbers")
    passes = data.draw(st.sampled_from((2, 12)), label="passes")
    stream = data.draw(streams(APPROXIMATE.shape, exact=exact, query_seq=1), label="stream")
    runner = Runner.of(backend, APPROXIMATE.but(retrieval="approximate", passes=passes))
    everything = Runner(backend, APPROXIMATE.memory, APPROXIMATE.rule.size)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        before = runner.numpy(state)
        best = runner.numpy(everything.retrieve(state, chunk)[1])
        state, _ = runner.attend(state, chunk)
        chosen = (runner.numpy(state).score > before.score) & before.valid
        for b in range(stream.shape.batch):
            where = f"step {number}, row {b}, {passes} passes"
            ok = best.valid[b, 0, 0]
            similarity = dict(
                zip(
                    best.position[b, 0, 0][ok].tolist(),
                    best.similarity[b, 0, 0][ok].tolist(),
                    strict=True,
                )
            )
            got = before.position[b][chosen[b]].tolist()
            assert bool(got) == bool(similarity), (
                f"{where}: selected {got} of the entries with similarities {similarity}"
            )
            if not got:
                continue
            last = sorted(similarity.values(), reverse=True)[:3][-1]
            beyond = [place for place in got if similarity[place] < last]
            assert not beyond, (
                f"{where}: selected {got}, but {beyond} are not in the top 3 of {similarity}"
            )


@law()
@given(data=st.data())
def test_kernels_equal_the_generic_path(backend: Any, data: st.DataObject) -> None:
    """The backend's own kernels give what the generic path in standard functions gives."""
    if not backend.kernels:
        pytest.skip(f"backend {backend.name!r} has no kernels of its own")
    cases = [one for one in CORE if one.name in KERNEL_CASES]
    one, stream = data.draw(case_and_stream(cases), label="case and stream")
    own = Runner.of(backend, one).run(stream)
    generic = Runner.of(backend, one, generic=True).run(stream)
    assert_runs_agree(own, generic, f"{one.name}, kernels of {backend.name}")


KERNEL_CASES = ("lru", "lra-sum", "lfa-decay", "lra-max-sum-heads", "visible-lra", "per-head-lra")
