"""Laws of tiers: conservation, capacity, order, rows, padding, chunks, save and restore."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import MHA, scattered, seeded, streams, with_garbage
from attendre_conformance.memory.test_chunks import rechunked
from attendre_conformance.options import law
from attendre_conformance.running import compiles, few, from_numpy
from attendre_conformance.tiers.cases import (
    EVERY,
    FIFO_PAIR,
    KV,
    MERGED,
    PLAIN,
    POOLED,
    T,
    TiersCase,
    case,
    case_and_stream,
)

pytestmark = pytest.mark.attendre_profile("laws")

CORE = (FIFO_PAIR, POOLED[1], MERGED[0], PLAIN[1], PLAIN[5], *POOLED[2:5])


def stands_for(entries: Any, per_head: bool) -> Any:
    """How many inserted entries the valid ones of each row [and head] stand for."""
    counts = entries.valid * 1 if entries.aux is None else entries.aux["count"]
    total = np.sum(np.where(entries.valid, counts, 0), axis=-1)
    return total if per_head else total[:, None]


@law()
@given(data=st.data())
def test_tiers_lose_nothing(backend: Any, data: st.DataObject) -> None:
    """What tiers hold and what they evicted stands for every inserted entry, once.

    Without compressors the positions are those that were inserted, as multisets. Specification,
    law-tiers.
    """
    one, stream = data.draw(case_and_stream(few(backend, CORE, 2)), label="case and stream")
    per_head = one.rule.first.per_head
    state, evicted, _ = one.runner(backend).run(stream)
    held = stands_for(state, per_head) + sum(stands_for(gone, per_head) for gone in evicted)
    inserted = sum(chunk.valid.sum(axis=1) for chunk in stream.chunks)
    assert (held == inserted[:, None]).all(), f"{one.name}: {held} of {inserted} entries"
    if one.memory.compresses or per_head:
        return
    for b in range(stream.shape.batch):
        there = Counter(state.position[b][state.valid[b]].tolist())
        for gone in evicted:
            there.update(gone.position[b][gone.valid[b]].tolist())
        want = Counter(
            p for chunk in stream.chunks for p in chunk.position[b][chunk.valid[b]].tolist()
        )
        assert there == want, f"{one.name}, row {b}: {there}, inserted {want}"


@law()
@given(data=st.data())
def test_no_tier_holds_more_than_its_size(backend: Any, data: st.DataObject) -> None:
    """Each tier holds at most its size, and fills up before the next gets anything.

    Specification, law-tiers.
    """
    one, stream = data.draw(case_and_stream(few(backend, CORE, 2)), label="case and stream")
    runner = one.runner(backend)
    state = runner.init(stream.shape)
    for chunk in stream.chunks:
        state, _, _ = runner.step(state, chunk)
        now = runner.numpy(state)
        parts = one.memory.tiers(now)
        used = [part.valid.sum(axis=-1) for part in parts]
        assert (used[0] <= one.memory.first.slots(stream.shape.seq)).all()
        for number, (before, after) in enumerate(pairwise(parts)):
            size = one.memory.memories[number].size
            some = after.valid.any(axis=-1)
            full = before.valid.sum(axis=-1) >= size
            assert (full | ~some).all(), f"{one.name}: tier {number + 1} before {number} is full"
            assert (used[number + 1] <= one.memory.memories[number + 1].size).all()


@law()
@given(data=st.data())
def test_rows_of_tiers_are_independent(backend: Any, data: st.DataObject) -> None:
    """Permuting the rows of a batch permutes everything that comes out.

    Specification, law-rows.
    """
    one, stream = data.draw(case_and_stream(few(backend, CORE, 2)), label="case and stream")
    order = data.draw(st.permutations(range(stream.shape.batch)), label="order")
    other = replace(stream, chunks=tuple(chunk.rows(order) for chunk in stream.chunks))
    runner = one.runner(backend)
    (state, gone, out), (state2, gone2, out2) = runner.run(stream), runner.run(other)
    assert kept(state2) == [kept(state)[b] for b in order]
    for a, b in zip(gone, gone2, strict=True):
        np.testing.assert_array_equal(np.where(a.valid, a.position, -1)[order],
                                      np.where(b.valid, b.position, -1))  # fmt: skip
    for a, b in zip(out, out2, strict=True):
        comparing.assert_close(b, a[order], f"{one.name}: output")


@law()
@given(data=st.data())
def test_padding_changes_nothing_in_tiers(backend: Any, data: st.DataObject) -> None:
    """What stands in padding, and where padding is, changes nothing.

    Specification, law-padding.
    """
    one, stream = data.draw(case_and_stream(few(backend, CORE, 2)), label="case and stream")
    runner = one.runner(backend)
    state, _, out = runner.run(stream)
    garbage = runner.run(with_garbage(stream, -123.0))
    comparing.assert_same(garbage[0], state, f"{one.name}: with other padding")
    wider = stream.shape.seq + 2
    if one.memory.present == "visible":
        return
    places = np.sort(
        np.argsort(np.random.default_rng(len(stream.chunks)).random((stream.shape.batch, wider)))[
            :, : stream.shape.seq
        ]
    )
    wide = tuple(scattered(chunk, places, wider) for chunk in stream.chunks)
    shape = replace(stream.shape, seq=wider)
    state2, _, out2 = runner.run(replace(stream, shape=shape, chunks=wide))
    assert kept(state2) == kept(state), f"{one.name}: more padding"
    for a, b in zip(out, out2, strict=True):
        same = np.take_along_axis(b, places[:, :, None, None], axis=1)
        comparing.assert_close(same, a, f"{one.name}: output with more padding")


@law()
@given(data=st.data())
def test_chunking_changes_nothing_for_fifo_tiers(backend: Any, data: st.DataObject) -> None:
    """First-in-first-out tiers hold the same entries however the stream is cut, compressed or not.

    Specification, law-tiers. (A merge, and the choice of the most used, see a chunk at once.)
    """
    cases = few(backend, (FIFO_PAIR, POOLED[0], POOLED[2], POOLED[3]), 2)
    one = data.draw(st.sampled_from(cases), label="case")
    stream = data.draw(streams(one.shape, max_steps=4, query_mode="own"), label="stream")
    other, _ = rechunked(data, stream)
    runner = one.runner(backend)
    (state, gone, _), (state2, gone2, _) = runner.run(stream), runner.run(other)
    for tier, (a, b) in enumerate(
        zip(one.memory.tiers(state), one.memory.tiers(state2), strict=True)
    ):
        assert kept(b) == kept(a), f"{one.name}, tier {tier}: cut elsewhere"
        np.testing.assert_array_equal(b.clock, a.clock)
    for b in range(stream.shape.batch):
        positions = [
            sorted(p for x in some for p in x.position[b][x.valid[b]].tolist())
            for some in (gone, gone2)
        ]
        assert positions[0] == positions[1], f"{one.name}, row {b}: evicted"


@law()
@given(data=st.data())
def test_fifo_tiers_are_one_memory(backend: Any, data: st.DataObject) -> None:
    """Two first-in-first-out tiers under one softmax are one memory of the sum of their sizes.

    Specification, law-tiers.
    """
    stream = data.draw(streams(MHA, max_steps=5), label="stream")
    tiers = FIFO_PAIR.runner(backend)
    single = Runner(backend, at.KeyValueMemory(FIFO_PAIR.memory.size), causal=True)
    (state, gone, out), (state2, gone2, out2) = tiers.run(stream), single.run(stream)
    assert kept(state) == kept(state2)
    for a, b in zip(out, out2, strict=True):
        comparing.assert_close(a, b, "output")
    for b in range(stream.shape.batch):
        one, two = (
            sorted(p for x in some for p in x.position[b][x.valid[b]].tolist())
            for some in (gone, gone2)
        )
        assert one == two, f"row {b}: evicted"


@law()
@given(data=st.data())
def test_each_tier_counts_what_leaves_it(backend: Any, data: st.DataObject) -> None:
    """Evictions are what left a tier, and refusals what left it in the step in which it came.

    Specification, law-tiers.
    """
    cases = few(backend, (FIFO_PAIR, PLAIN[1], PLAIN[6], PLAIN[2]), 2)
    one, stream = data.draw(case_and_stream(cases), label="case and stream")
    runner = one.runner(backend)
    state = runner.init(stream.shape)
    for chunk in stream.chunks:
        before = one.memory.tiers(runner.numpy(state))
        state, _, _ = runner.step(state, chunk)
        after = one.memory.tiers(runner.numpy(state))
        for b in range(stream.shape.batch):
            came = Counter(chunk.position[b][chunk.valid[b]].tolist())
            for tier, (old, new) in enumerate(zip(before, after, strict=True)):
                was, now = (Counter(x.position[b][x.valid[b]].tolist()) for x in (old, new))
                went = came + was - now
                counted = [
                    int(getattr(new, name)[b] - getattr(old, name)[b])
                    for name in ("evictions", "refusals")
                ]
                want = [went.total(), (went - was).total()]
                assert counted == want, f"{one.name}, row {b}, tier {tier}: {counted}, not {want}"
                came = went


@pytest.mark.parametrize("one", [FIFO_PAIR, POOLED[0]], ids=["plain", "compressed"])
def test_decoding_holds_what_was_read_once(backend: Any, one: TiersCase) -> None:
    """With room for generated entries, all tiers hold what they held, and attend to the same.

    Specification, law-tiers.
    """
    runner = one.runner(backend)
    stream = seeded(one.shape, np.random.default_rng(3), steps=6, exact=one.exact)
    state = runner.init(stream.shape)
    for chunk in stream.chunks:
        state, _, _ = runner.step(state, chunk)
    memory, grown = one.memory.decoding(state, 2)
    assert kept(runner.numpy(grown)) == kept(runner.numpy(state))
    decoding = replace(one, memory=memory).runner(backend)
    (_, want), (_, got) = runner.attend(state, chunk), decoding.attend(grown, chunk)
    comparing.assert_close(runner.numpy(got), runner.numpy(want), f"{one.name}: output")


@pytest.mark.parametrize("one", CORE, ids=[one.name for one in CORE])
def test_saved_tiers_go_on_the_same(backend: Any, one: TiersCase) -> None:
    """A state that goes through plain arrays and back continues as if it had never stopped.

    Specification, law-restore.
    """
    if one not in few(backend, CORE, 2):
        pytest.skip("each case would be compiled")
    runner = one.runner(backend)
    stream = seeded(one.shape, np.random.default_rng(0), steps=6, exact=one.exact)
    state = other = runner.init(stream.shape)
    for number, chunk in enumerate(stream.chunks):
        if number == 3:
            other = from_numpy(backend, runner.numpy(state))
        state, _, out = runner.step(state, chunk)
        other, _, out2 = (state, None, out) if number < 3 else runner.step(other, chunk)
        comparing.assert_same(runner.numpy(out2), runner.numpy(out), f"{one.name}, step {number}")
    comparing.assert_same(runner.numpy(other), runner.numpy(state), one.name)


@pytest.mark.parametrize("one", CORE, ids=[one.name for one in CORE])
def test_tiers_leave_their_state_alone(backend: Any, one: TiersCase) -> None:
    """A step leaves the state it was given unchanged; a donated one gives the same.

    Specification, law-purity.
    """
    if one not in few(backend, CORE, 2):
        pytest.skip("each case would be compiled")
    runner = one.runner(backend)
    stream = seeded(one.shape, np.random.default_rng(1), steps=5, exact=one.exact)
    state = donated = runner.init(stream.shape)
    for chunk in stream.chunks:
        before = runner.numpy(state)
        after, _, _ = runner.step(state, chunk)
        comparing.assert_same(runner.numpy(state), before, f"{one.name}: the state given")
        again = from_numpy(backend, runner.numpy(donated))
        donated, _ = runner.insert(again, chunk, donate=True)
        donated, _ = runner.attend(donated, chunk)
        state = after
    comparing.assert_same(runner.numpy(donated), runner.numpy(state), f"{one.name}: donated")


def test_rows_of_tiers_can_be_reset_and_reordered(backend: Any) -> None:
    """A row that was reset is as new, and reordering moves all tiers together.

    Specification, law-rows.
    """
    for one in few(backend, (POOLED[1], PLAIN[7], EVERY[0]), 1):
        runner = one.runner(backend)
        stream = seeded(one.shape, np.random.default_rng(2), steps=5, exact=one.exact)
        state = runner.init(stream.shape)
        for chunk in stream.chunks:
            state, _, _ = runner.step(state, chunk)
        rows = [b % 2 == 0 for b in range(stream.shape.batch)]
        now, empty = runner.numpy(runner.reset(state, rows)), runner.init(stream.shape)
        want, old = runner.numpy(empty), runner.numpy(state)
        for b, new in enumerate(rows):
            for name in ("position", "valid", "clock", "key"):
                source = want if new else old
                np.testing.assert_array_equal(getattr(now, name)[b], getattr(source, name)[b])
            for tier, tier2 in zip(now.tiers, (want if new else old).tiers, strict=True):
                np.testing.assert_array_equal(tier.clock[b], tier2.clock[b])
        turned = runner.numpy(runner.reorder(state, list(range(stream.shape.batch))[::-1]))
        assert kept(turned) == kept(old)[::-1]


def test_tiers_compile(backend: Any) -> None:
    """A compiled step keeps and evicts the same entries as an eager one, with close numbers.

    Specification, law-same-choices.
    """
    if "compile" not in backend.capabilities or compiles(backend):
        pytest.skip("the backend has no compiler, or streams run compiled on it anyway")
    one = case(
        "all", MHA, KV(3, at.Usage(), present="visible"), T(KV(3, at.LFA(0.0)), at.MostUsed(2)),
        T(KV(2), at.MeanPool(2)), T(KV(2), at.Merge()),
    )  # fmt: skip
    stream = seeded(one.shape, np.random.default_rng(4), steps=8, exact=False)
    (state, gone, out), (state2, gone2, out2) = (
        one.runner(backend, compiled).run(stream) for compiled in (False, True)
    )
    assert kept(state2) == kept(state)
    for a, b in zip((*out, *(x.key for x in gone)), (*out2, *(x.key for x in gone2)), strict=True):
        comparing.assert_close(b, a, "compiled")
