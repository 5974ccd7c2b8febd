"""Laws of the eviction policies: what the choice of entries may and may not depend on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.cases import EVERY, Case, case
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import (
    GQA,
    LONG_CHUNK,
    MHA,
    SINGLE,
    Chunk,
    Shape,
    Stream,
    streams,
)
from attendre_conformance.options import law
from attendre_conformance.oracle import OracleMemory

pytestmark = pytest.mark.attendre_profile("laws")


def kept_after_every_step(runner: Runner, stream: Stream) -> list[Any]:
    """Positions kept after every step."""
    state = runner.init(stream.shape)
    result = []
    for chunk in stream.chunks:
        state, _, _ = runner.step(state, chunk)
        result.append(kept(runner.numpy(state)))
    return result


def steps_without_near_ties(one: Case, stream: Stream) -> int:
    """Number of steps before the first decision that rounding could tip."""
    oracle = OracleMemory(one.rule, stream.shape.batch, stream.shape.kv_heads, stream.exact)
    for number, chunk in enumerate(stream.chunks):
        against_oracle.oracle_insert(oracle, chunk)
        against_oracle.oracle_attend(oracle, chunk, one.top_k, one.causal)
        if oracle.gap < comparing.NEAR:
            return number
    return len(stream.chunks)


@law()
@given(data=st.data())
def test_no_sinks_is_fifo(backend: Any, data: st.DataObject) -> None:
    """AttentionSink with zero sinks is FIFO.

    Specification, law-sinks; reading 14.
    """
    shape = data.draw(st.sampled_from((LONG_CHUNK, MHA)), label="shape")
    stream = data.draw(streams(shape), label="stream")
    none = Runner.of(backend, case("no-sinks", shape, at.AttentionSink(sinks=0)))
    fifo = Runner.of(backend, case("fifo", shape, at.FIFO()))
    got, want = kept_after_every_step(none, stream), kept_after_every_step(fifo, stream)
    assert got == want, f"AttentionSink(0) keeps {got}, FIFO keeps {want}"


#: Pool to shape, a and b; few, since each is compiled by itself.
AFFINE: dict[Any, tuple[Shape, float, float]] = {
    "last": (GQA, 0.5, -3.0),
    "max": (MHA, 4.0, 2.0),
    "sum": (LONG_CHUNK, 2.0, -1.5),
}


@law()
@given(data=st.data())
def test_lra_survives_affine_scores(backend: Any, data: st.DataObject) -> None:
    """LRA's choices are the same when every score s becomes a*s + b, a > 0.

    Specification, law-affine. (While every step has a query in every row: before its first query an
    entry holds the 0 of an empty memory, which is not transformed.)
    """
    pool = data.draw(st.sampled_from(tuple(AFFINE)), label="pool")
    shape, a, b = AFFINE[pool]
    stream = data.draw(streams(shape, padding=False, query_mode="own"), label="stream")
    plain = case("plain", shape, at.LRA(pool))
    changed = case("affine", shape, at.LRA(pool, score=at.Shift(b)), scale=a * 0.5)
    safe = min(steps_without_near_ties(one, stream) for one in (plain, changed))
    event(f"{safe} of {len(stream.chunks)} steps without near-ties")
    want = kept_after_every_step(Runner.of(backend, plain), stream)[:safe]
    got = kept_after_every_step(Runner.of(backend, changed), stream)[:safe]
    assert got == want, f"LRA({pool}): keeps {got} under {a}*s + {b}, {want} otherwise"


@law()
@given(data=st.data())
def test_lfa_survives_scaled_scores(backend: Any, data: st.DataObject) -> None:
    """LFA's choices are the same when every score s becomes a*s, a > 0.

    Specification, law-affine.
    """
    decay, a, causal = data.draw(
        st.sampled_from(((0.0, 2.0, False), (0.0625, 0.25, True))), label="decay, a, causal"
    )
    stream = data.draw(streams(MHA), label="stream")
    plain = case("plain", MHA, at.LFA(decay), causal=causal)
    scaled = case("scaled", MHA, at.LFA(decay), causal=causal, scale=a * 0.5)
    want = kept_after_every_step(Runner.of(backend, plain), stream)
    got = kept_after_every_step(Runner.of(backend, scaled), stream)
    # A power of two scales floats exactly: there are no near-ties here.
    assert got == want, f"LFA({decay}): keeps {got} under {a}*s, {want} otherwise"


@law()
@given(data=st.data())
def test_lra_pools_agree_on_single_queries(backend: Any, data: st.DataObject) -> None:
    """With one query a chunk and one head, LRA last, max and sum are one policy.

    Specification, law-single-query.
    """
    wider = replace(SINGLE, size=5, top_k=None)
    shape, causal = data.draw(
        st.sampled_from(((SINGLE, True), (wider, False))), label="shape, causal"
    )
    stream = data.draw(streams(shape, max_steps=8), label="stream")
    states = {}
    for pool in ("last", "max", "sum"):
        runner = Runner.of(backend, case(pool, shape, at.LRA(pool), causal=causal))
        states[pool], _, _ = runner.run(stream)
    for pool in ("max", "sum"):
        assert kept(states[pool]) == kept(states["last"]), (
            f"LRA({pool}) keeps {kept(states[pool])}, LRA(last) keeps {kept(states['last'])}"
        )
        ok = states["last"].valid
        comparing.assert_close(
            np.where(ok, states[pool].score, 0.0),
            np.where(ok, states["last"].score, 0.0),
            f"scores of LRA({pool}) against LRA(last)",
        )


@law()
@given(data=st.data())
def test_windows_of_queries(backend: Any, data: st.DataObject) -> None:
    """A window of one query is LRA-last, and a window of the whole chunk is no window."""
    pool = data.draw(st.sampled_from(("sum", "max")), label="pool")
    stream = data.draw(streams(GQA), label="stream")

    def states(pool: Any, window: int | None = None) -> Any:
        policy = at.LRA(pool, heads="sum", window=window)
        return Runner.of(backend, case("windows", GQA, policy, causal=True)).run(stream)[0]

    for window, other in ((1, states("last")), (GQA.seq, states(pool))):
        state = states(pool, window=window)
        assert kept(state) == kept(other), f"LRA({pool}, window={window}) keeps others"
        comparing.assert_close(
            np.where(other.valid, state.score, 0.0),
            np.where(other.valid, other.score, 0.0),
            f"scores of LRA({pool}, window={window})",
        )


PER_HEAD = [EVERY["lra-sum"], EVERY["lru-top-1"]]


@law()
@given(data=st.data())
def test_per_head_with_one_head_is_token_wise(backend: Any, data: st.DataObject) -> None:
    """Eviction per head, with a single K/V head, is eviction per token.

    Specification, reading 6 (the paper's footnote).
    """
    one = data.draw(st.sampled_from(PER_HEAD), label="case")
    stream = data.draw(streams(one.shape), label="stream")
    token, _, outputs = Runner.of(backend, one).run(stream)
    head, _, outputs2 = Runner.of(backend, one.but(per_head=True)).run(stream)
    got = [row[0] for row in kept(head)]
    assert got == kept(token), f"{one.name}: per head keeps {got}, per token {kept(token)}"
    for number, (a, b) in enumerate(zip(outputs2, outputs, strict=True)):
        comparing.assert_close(a, b, f"{one.name}: output of step {number}")


@law()
@given(data=st.data())
def test_per_head_is_one_memory_per_head(backend: Any, data: st.DataObject) -> None:
    """Eviction per head is the same as giving every K/V head a memory of its own.

    Specification, reading 6 (the paper's footnote).
    """
    names = ("per-head-lra", "per-head-lru")
    one = EVERY[data.draw(st.sampled_from(names), label="case")]
    stream = data.draw(streams(one.shape, max_steps=3), label="stream")
    state, _, outputs = Runner.of(backend, one).run(stream)
    alone = replace(one.shape, kv_heads=1, heads=2)
    single_head = case("one", alone, one.memory.policy, causal=one.causal)
    for g in range(one.shape.kv_heads):
        part = Stream(alone, tuple(one_head(c, g) for c in stream.chunks), stream.exact)
        single, _, outputs2 = Runner.of(backend, single_head).run(part)
        got = [row[g] for row in kept(state)]
        assert got == kept(single), f"head {g} keeps {got}, a memory of its own {kept(single)}"
        for number, (a, b) in enumerate(zip(outputs, outputs2, strict=True)):
            comparing.assert_close(a[:, :, 2 * g : 2 * g + 2], b, f"head {g}, step {number}")


def one_head(chunk: Chunk, g: int) -> Chunk:
    """Return a chunk with K/V head ``g`` and its two query heads alone."""
    return replace(
        chunk,
        key=chunk.key[:, :, g : g + 1],
        value=chunk.value[:, :, g : g + 1],
        query=chunk.query[:, :, 2 * g : 2 * g + 2],
    )


@law()
@given(data=st.data())
def test_scores_come_from_all_entries(backend: Any, data: st.DataObject) -> None:
    """LRA and LFA score all stored entries, not only those in the top K.

    Specification, reading 4.
    """
    policy = data.draw(
        st.sampled_from((at.LRA("max"), at.LRA("sum", at.InitialScore(0.0), score="softmax"))),
        label="policy",
    )
    stream = data.draw(streams(MHA), label="stream")
    one = case("all-entries", MHA, policy)
    few = Runner(backend, one.memory, 1).run(stream)[0]
    everything = Runner(backend, one.memory, None).run(stream)[0]
    assert kept(few) == kept(everything), (
        f"{policy}: top_k=1 keeps {kept(few)}, no top_k keeps {kept(everything)}"
    )
    ok = everything.valid
    comparing.assert_close(
        np.where(ok, few.score, 0.0),
        np.where(ok, everything.score, 0.0),
        f"{policy}: scores with top_k=1 against those without",
    )


@law()
@given(data=st.data())
def test_attention_comes_after_eviction(backend: Any, data: st.DataObject) -> None:
    """Queries attend to the survivors: the entries that are stored when insert returns.

    Specification, reading 1: evict down to M at once; the queries retrieve from the M survivors.
    """
    policy, shape = data.draw(
        st.sampled_from(((at.LRA("sum"), LONG_CHUNK), (at.LFU(), MHA))), label="policy, shape"
    )
    stream = data.draw(streams(shape), label="stream")
    one = case("survivors", replace(shape, top_k=shape.size), policy)
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        held = kept(runner.numpy(state))
        state, found = runner.retrieve(state, chunk)
        found = runner.numpy(found)
        for b, i, h in np.ndindex(*found.valid.shape[:3]):
            got = sorted(found.position[b, i, h][found.valid[b, i, h]].tolist())
            want = held[b] if chunk.query_valid[b, i] else []
            assert got == want, (
                f"{policy}, step {number}, row {b}, query {i}: attends to {got}, stored are {want}"
            )


@law()
@given(data=st.data())
def test_unseen_entries_keep_their_score(backend: Any, data: st.DataObject) -> None:
    """An entry that no valid query of the step may attend to keeps its score, undecayed.

    Specification, reading 9.
    """
    one = data.draw(st.sampled_from(UNSEEN), label="case")
    stream = data.draw(streams(one.shape, query_mode="late"), label="stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        state, _ = runner.insert(state, chunk)
        before = runner.numpy(state)
        state, _ = runner.attend(state, chunk)
        after = runner.numpy(state)
        for b in range(stream.shape.batch):
            asked = chunk.query_position[b][chunk.query_valid[b]]
            newest = asked.max() if asked.size else -1
            for slot in np.nonzero(before.valid[b])[0]:
                place = before.position[b, slot]
                if place > newest:
                    assert after.score[b, slot] == before.score[b, slot], (
                        f"{one.name}, step {number}, row {b}: the latest query is at {newest}, "
                        f"yet the score of the entry at {place} went from "
                        f"{before.score[b, slot]!r} to {after.score[b, slot]!r}"
                    )


UNSEEN = [
    case("lfa-unseen", MHA, at.LFA(0.0625, at.ConstantScore(1.0)), causal=True),
    EVERY["lra-last-causal"],
]
