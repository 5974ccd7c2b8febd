"""Laws of capacity: nothing lost, nothing twice, nothing too many; who is never evicted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.cases import CORE, EVERY, case, case_and_stream
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import GQA, MHA, Chunk, seeded
from attendre_conformance.options import law
from attendre_conformance.oracle import OracleMemory

pytestmark = pytest.mark.attendre_profile("laws")


def inserted_items(chunk: Chunk, row: int, head: int | None = None) -> Counter[Any]:
    """Count the valid entries of a chunk as (position, key, value)."""
    part = slice(None) if head is None else slice(head, head + 1)
    return Counter(
        (
            int(chunk.position[row, s]),
            tuple(chunk.key[row, s, part].ravel().tolist()),
            tuple(chunk.value[row, s, part].ravel().tolist()),
        )
        for s in range(chunk.valid.shape[1])
        if chunk.valid[row, s]
    )


@law()
@given(data=st.data())
def test_capacity_is_never_exceeded(backend: Any, data: st.DataObject) -> None:
    """A memory never holds more than M entries (M + S when the present chunk is visible).

    Specification, law-capacity; readings 2 and 3.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    visible = one.rule.present == "visible"
    slots = one.rule.size + (stream.shape.seq if visible else 0)
    for number, chunk in enumerate(stream.chunks):
        state, _, _ = runner.step(state, chunk)
        valid = runner.numpy(state.valid)
        assert valid.shape[-1] == slots, (
            f"{one.name}, step {number}: the state has {valid.shape[-1]} slots, expected {slots}"
        )
        held = valid.sum(axis=-1)
        assert np.all(held <= slots), f"{one.name}, step {number}: {held.tolist()} entries held"
    if visible:
        held = runner.numpy(runner.settle(state)[0].valid).sum(axis=-1)
        assert np.all(held <= one.rule.size), (
            f"{one.name}: {held.tolist()} entries after settle, at most {one.rule.size} allowed"
        )


@law()
@given(data=st.data())
def test_nothing_lost_nothing_twice(backend: Any, data: st.DataObject) -> None:
    """Kept + evicted = old + inserted, as multisets of positions, keys and values.

    Specification, law-conservation.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    heads = range(stream.shape.kv_heads) if one.rule.per_head else [None]
    before = one.memory.entries(runner.numpy(state))
    for number, chunk in enumerate(stream.chunks):
        state, out, _ = runner.step(state, chunk)
        evicted, after = runner.numpy(out), one.memory.entries(runner.numpy(state))
        for b in range(stream.shape.batch):
            for g in heads:
                old = against_oracle.stored_items(before, b, g) + inserted_items(chunk, b, g)
                new = against_oracle.stored_items(after, b, g) + against_oracle.evicted_items(
                    evicted, b, g
                )
                assert new == old, (
                    f"{one.name}, step {number}, row {b}, head {g}: lost {old - new}, "
                    f"appeared from nowhere or twice {new - old}"
                )
        before = after


def test_settle_hands_back_what_it_cuts(backend: Any) -> None:
    """Settling a visible memory keeps the best M and returns the others.

    Specification, reading 3.
    """
    one = EVERY["visible-lra"]
    runner = Runner.of(backend, one)
    for seed in range(5):
        stream = seeded(one.shape, np.random.default_rng(seed), steps=4)
        oracle = OracleMemory(one.rule, stream.shape.batch, stream.shape.kv_heads)
        state = runner.init(stream.shape)
        for chunk in stream.chunks:
            state, _, _ = runner.step(state, chunk)
            against_oracle.oracle_insert(oracle, chunk)
            against_oracle.oracle_attend(oracle, chunk, one.top_k, one.causal)
        state, evicted = runner.settle(state)
        want = oracle.settle()
        if oracle.gap < comparing.NEAR:
            continue
        against_oracle.assert_kept(runner.numpy(state), oracle, f"seed {seed}, after settle")
        against_oracle.assert_evicted(runner.numpy(evicted), want, False, f"seed {seed}, settle")


PINNED = [EVERY["pinned-lfa"], EVERY["recent-lra"]]


@law()
@given(data=st.data())
def test_pinned_are_never_evicted(backend: Any, data: st.DataObject) -> None:
    """An entry pinned by flag or by position stays, as long as all pinned ones fit."""
    one, stream = data.draw(case_and_stream(PINNED), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    pinned: list[set[int]] = [set() for _ in range(stream.shape.batch)]
    for number, chunk in enumerate(stream.chunks):
        state, _, _ = runner.step(state, chunk)
        held = kept(runner.numpy(state))
        for b in range(stream.shape.batch):
            for s in np.nonzero(chunk.valid[b])[0]:
                place = int(chunk.position[b, s])
                ranged = any(low <= place < high for low, high in one.rule.pin)
                if ranged or (chunk.pinned is not None and chunk.pinned[b, s]):
                    pinned[b].add(place)
            if len(pinned[b]) <= one.rule.size:
                assert pinned[b] <= set(held[b]), (
                    f"{one.name}, step {number}, row {b}: pinned positions {sorted(pinned[b])}, "
                    f"but only {held[b]} are kept"
                )


@law()
@given(data=st.data())
def test_sinks_are_never_evicted(backend: Any, data: st.DataObject) -> None:
    """The first entries of every row stay for ever under AttentionSink; the rest is FIFO.

    Specification, reading 14.
    """
    cases = [EVERY["sink"], EVERY["sink-long-chunk"]]
    one, stream = data.draw(case_and_stream(cases), label="case and stream")
    sinks = one.rule.policy.sinks
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    arrived: list[list[int]] = [[] for _ in range(stream.shape.batch)]
    for number, chunk in enumerate(stream.chunks):
        state, _, _ = runner.step(state, chunk)
        held = kept(runner.numpy(state))
        for b in range(stream.shape.batch):
            arrived[b] += chunk.position[b][chunk.valid[b]].tolist()
            rest = arrived[b][sinks:][-(one.rule.size - sinks) :]
            want = sorted(arrived[b][:sinks] + rest)
            assert held[b] == want, (
                f"{one.name}, step {number}, row {b}: kept {held[b]}, expected the sinks "
                f"{arrived[b][:sinks]} and the most recent {rest}"
            )


PROTECTED = [
    case("protect-lru", MHA, at.LRU(), protect_recent=4),
    case("protect-lfa", GQA, at.LFA(decay=0.0, initial=at.InitialScore(2.0)), protect_recent=5),
]


@law()
@given(data=st.data())
def test_recent_window_is_never_evicted(backend: Any, data: st.DataObject) -> None:
    """The last W valid arrivals are present, whatever their scores."""
    one, stream = data.draw(case_and_stream(PROTECTED), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    arrived: list[list[int]] = [[] for _ in range(stream.shape.batch)]
    for number, chunk in enumerate(stream.chunks):
        state, _, _ = runner.step(state, chunk)
        held = kept(runner.numpy(state))
        for b in range(stream.shape.batch):
            arrived[b] += chunk.position[b][chunk.valid[b]].tolist()
            window = arrived[b][-one.rule.protect_recent :]
            assert set(window) <= set(held[b]), (
                f"{one.name}, step {number}, row {b}: the last {one.rule.protect_recent} arrivals "
                f"are {window}, but {held[b]} are kept"
            )


VISIBLE = [EVERY[n] for n in ("visible-lra", "visible-lfa", "visible-sink", "recent-visible")]


@law()
@given(data=st.data())
def test_own_chunk_is_visible(backend: Any, data: st.DataObject) -> None:
    """With present="visible" a chunk is attended in its own step, from at most M + S entries.

    Specification, reading 3.
    """
    one, stream = data.draw(case_and_stream(VISIBLE), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        held = kept(runner.numpy(state))
        for b in range(stream.shape.batch):
            own = chunk.position[b][chunk.valid[b]].tolist()
            assert set(own) <= set(held[b]), (
                f"{one.name}, step {number}, row {b}: own chunk {own}, but {held[b]} are visible"
            )
            assert len(held[b]) <= one.rule.size + stream.shape.seq, (
                f"{one.name}, step {number}, row {b}: {len(held[b])} entries are visible, more "
                f"than M + S = {one.rule.size} + {stream.shape.seq}"
            )
        state, _ = runner.attend(state, chunk)
