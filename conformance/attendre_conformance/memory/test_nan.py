"""Laws of broken numbers: NaN and infinity never spread, and never spoil a state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.memory.cases import EVERY, case_and_stream
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import Chunk, Stream, with_garbage
from attendre_conformance.options import law
from attendre_conformance.running import few

pytestmark = pytest.mark.attendre_profile("laws")

#: Finite, but products with it do not fit into float32.
HUGE = 1e38
BROKEN = (float("nan"), float("inf"), float("-inf"), HUGE, -HUGE)
SOME = [EVERY[n] for n in ("lru", "lfa-0", "sink", "lfa-decay", "lfa-softmax-hold")]
#: Both ways to treat the present chunk, whole tokens and single heads, pins.
EACH = [EVERY[n] for n in ("visible-lra", "lfa-0", "per-head-lra", "visible-lfa", "pinned-lfa")]
VISIBLE = [EVERY[n] for n in ("visible-lra", "visible-lfa", "visible-sink", "recent-visible")]


@law()
@given(data=st.data())
def test_broken_entries_are_refused(backend: Any, data: st.DataObject) -> None:
    """Unchecked, an entry with NaN or infinity is handed back, and all else is as without it.

    NaN never spreads silently from one slot to others.
    """
    one, stream = data.draw(case_and_stream(SOME), label="case and stream")
    number = data.draw(st.sampled_from(BROKEN), label="broken number")
    field = data.draw(st.sampled_from(("key", "value")), label="where")
    b = data.draw(st.integers(0, stream.shape.batch - 1), label="row")
    s = data.draw(st.integers(0, stream.shape.seq - 1), label="entry")
    at_step = data.draw(st.integers(0, len(stream.chunks) - 1), label="step")
    chunk = stream.chunks[at_step]
    array = getattr(chunk, field).copy()
    array[b, s, -1, 1] = number
    was_valid = bool(chunk.valid[b, s])
    gone = chunk.valid.copy()
    gone[b, s] = False
    broken = with_chunk(stream, at_step, replace(chunk, **{field: array}))
    without = with_chunk(stream, at_step, replace(chunk, valid=gone))
    runner = Runner.of(backend, one)
    with at.value_checks(False):
        got, evicted, outputs = runner.run(broken)
        want, evicted2, outputs2 = runner.run(without)
    where = f"{one.name}, {field} of entry {s} of row {b} is {number}"
    if one.name == "sink":  # counts arrivals: a refused one counts, a padding one does not
        assert np.all(np.isfinite(np.stack(outputs))), f"{where}: outputs {outputs}"
        return
    assert kept(got) == kept(want), f"{where}: kept {kept(got)}, without it {kept(want)}"
    for name, state in (("with", got), ("without", want)):
        for part in ("key", "value", "score"):
            assert np.all(np.isfinite(getattr(state, part))), f"{where}: {part} {name} it"
    for number2, (x, y) in enumerate(zip(outputs, outputs2, strict=True)):
        comparing.assert_close(x, y, f"{where}: output of step {number2}")
    for step, (x, y) in enumerate(zip(evicted, evicted2, strict=True)):
        more = [int(chunk.position[b, s])] if step == at_step and was_valid else []
        for row in range(stream.shape.batch):
            out = Counter(x.position[row][x.valid[row]].tolist())
            want_out = Counter(y.position[row][y.valid[row]].tolist())
            want_out += Counter(more if row == b else [])
            assert out == want_out, (
                f"{where}, step {step}, row {row}: handed back {out}, expected {want_out}"
            )


def beyond(number: float) -> np.float32:
    """Return a broken number for scores, which may be huge: infinity for what is finite."""
    return np.float32(number if not np.isfinite(number) else np.copysign(np.inf, number))


def with_broken(chunk: Chunk, field: str, number: float, where: Any) -> Chunk:
    """Return the chunk with a broken number in some entries, ``where`` being (batch, seq)."""
    if field == "score":
        return replace(chunk, score=np.where(where, beyond(number), np.float32(0.5)))
    array = getattr(chunk, field).copy()
    array[..., -1, 1] = np.where(where, np.float32(number), array[..., -1, 1])
    return replace(chunk, **{field: array})


def items(entries: Any, row: int, head: int | None) -> Counter[Any]:
    """Count entries as (position, bits of key and value): NaN is unequal to itself."""
    position, valid, key, value = entries.position, entries.valid, entries.key, entries.value
    if head is not None:
        position, valid = position[:, head], valid[:, head]
        key, value = key[:, :, head], value[:, :, head]
    return Counter(
        (int(position[row, s]), key[row, s].tobytes(), value[row, s].tobytes())
        for s in range(valid.shape[1])
        if valid[row, s]
    )


def ways(backend: Any) -> list[bool]:
    """Return how to run on a backend: compiled where streams are, otherwise both ways."""
    return few(backend, [True, False]) if "compile" in backend.capabilities else [False]


@law()
@given(data=st.data())
def test_nothing_is_lost_when_entries_break(backend: Any, data: st.DataObject) -> None:
    """Kept + evicted = old + inserted, broken entries included, and what is kept is finite.

    Laws: nothing lost, nothing twice. NaN never spreads silently.
    """
    compiled = data.draw(st.sampled_from(ways(backend)), label="compiled")
    cases = EACH[:2] if compiled and len(ways(backend)) > 1 else EACH
    one, stream = data.draw(case_and_stream(cases), label="case and stream")
    number = data.draw(st.sampled_from(BROKEN), label="broken number")
    field = data.draw(st.sampled_from(("key", "value", "score")), label="where")
    percent = data.draw(st.sampled_from((30, 100)), label="percent broken")
    rng = np.random.default_rng(data.draw(st.integers(0, 999), label="seed"))
    runner = Runner.of(backend, one, compiled=compiled)
    state, memory = runner.init(stream.shape), one.memory
    pool = memory.size + (stream.shape.seq if memory.present == "visible" else 0)
    for step, chunk in enumerate(stream.chunks):
        broken = chunk.valid & (rng.random(chunk.valid.shape) * 100 < percent)
        if chunk.pinned is not None:  # more pins than fit would be another error
            broken = broken & ~chunk.pinned
        chunk = with_broken(chunk, field, number, broken)
        before = runner.numpy(memory.entries(state))
        with at.value_checks(False):
            state, evicted, output = runner.step(state, chunk)
        where = f"{one.name}, {field} is {number} in {broken.tolist()}, step {step}"
        output, evicted = runner.numpy(output), runner.numpy(evicted)
        after = runner.numpy(memory.entries(state))
        for part in ("key", "value", "score"):
            assert np.all(np.isfinite(getattr(after, part))), f"{where}: {part} is not finite"
        assert np.all(np.isfinite(output)), f"{where}: output {output.tolist()}"
        most = int(after.valid.sum(axis=-1).max())
        assert most <= pool, f"{where}: holds {most} entries, room is for {pool}"
        for row in range(stream.shape.batch):
            for head in range(stream.shape.kv_heads) if memory.per_head else [None]:
                given_, held, out = items(chunk, row, None), items(after, row, head), None
                if head is not None:
                    own = replace(chunk, key=chunk.key[:, :, head], value=chunk.value[:, :, head])
                    given_ = items(own, row, None)
                out = items(evicted, row, head)
                total = items(before, row, head) + given_
                assert held + out == total, (
                    f"{where}, row {row}, head {head}: had and was given positions "
                    f"{sorted(x[0] for x in total.elements())}, holds "
                    f"{sorted(x[0] for x in held.elements())} and handed back "
                    f"{sorted(x[0] for x in out.elements())}"
                )


@law()
@given(data=st.data())
def test_the_best_stays_instead_of_a_broken_one(backend: Any, data: st.DataObject) -> None:
    """With a visible chunk, as many stay longer as broke, and no others than the best.

    Specification, reading 3: the pool attended never exceeds M + S; as many come back as went in.
    """
    one, stream = data.draw(case_and_stream(VISIBLE, min_steps=2), label="case and stream")
    count = data.draw(st.integers(1, 2), label="broken entries of a row")
    *first, last = stream.chunks
    broken = last.valid & (np.cumsum(last.valid, axis=1) <= count)
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for chunk in first:
        state, _, _ = runner.step(state, chunk)
    with at.value_checks(False):
        got, out = runner.insert(state, with_broken(last, "key", float("nan"), broken))
        want, all_out = runner.insert(state, replace(last, valid=last.valid & ~broken))
    got, out, want, all_out = (runner.numpy(x) for x in (got, out, want, all_out))
    if one.name.startswith("recent"):  # protection counts the clock, which a broken entry moves
        comparing.assert_same(got.clock, want.clock + broken.sum(axis=1, dtype=np.int32), "clock")
    for row in range(stream.shape.batch):
        if not np.any(last.valid[row] & ~broken[row]):
            continue  # nothing came in, so nothing had to go
        went, without = out.position[row][out.valid[row]], all_out.position[row][all_out.valid[row]]
        stayed = set(without.tolist()) - set(went.tolist())
        where = f"{one.name}, row {row}: {broken[row].sum()} broken, {went.tolist()} went"
        number = min(int(broken[row].sum()), len(without))
        assert len(stayed) == number, f"{where}, {stayed} stayed, expected {number} of {without}"
        assert set(kept(got)[row]) == set(kept(want)[row]) | stayed, (
            f"{where}: kept {kept(got)[row]}, expected {kept(want)[row]} and {stayed}"
        )
        worth = rank_of(one, all_out, row)
        worst = min((worth[p] for p in stayed), default=(np.inf, 0))
        best = max((worth[p] for p in set(without.tolist()) - stayed), default=(-np.inf, 0))
        assert best < worst, f"{where}: {stayed} stayed, worth {worst}, one of {best} went"


def rank_of(one: Any, evicted: Any, row: int) -> dict[int, tuple[float, int]]:
    """Return (priority, arrival) of the evicted entries by position: higher = keep."""
    by_score = (
        one.memory.policy.priority(at.Stored(**dict.fromkeys(at.Stored._fields, evicted.score)))
        is not None
    )
    return {
        int(evicted.position[row, s]): (
            float(evicted.score[row, s]) if by_score else 0.0,
            int(evicted.arrival[row, s]),
        )
        for s in np.nonzero(evicted.valid[row])[0]
    }


@law()
@given(data=st.data())
def test_broken_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """Whatever is in padding, NaN and infinity included, nobody ever reads it.

    Specification, reading 16: NaN never spreads silently.
    """
    one, stream = data.draw(case_and_stream(EACH), label="case and stream")
    number = data.draw(st.sampled_from(BROKEN), label="what is in padding")
    runner = Runner.of(backend, one)
    got, evicted, outputs = runner.run(with_garbage(stream, number))
    want, evicted2, outputs2 = runner.run(stream)
    where = f"{one.name}, {number} in the padding"
    assert kept(got) == kept(want), f"{where}: kept {kept(got)}, otherwise {kept(want)}"
    for part in ("key", "value", "score"):
        assert np.all(np.isfinite(getattr(got, part))), f"{where}: {part} is not finite"
    for step, (x, y) in enumerate(zip(outputs, outputs2, strict=True)):
        comparing.assert_same(x, y, f"{where}: output of step {step}")
    for step, (x, y) in enumerate(zip(evicted, evicted2, strict=True)):
        comparing.assert_same(x.valid, y.valid, f"{where}: evicted in step {step}")


@law()
@given(data=st.data())
def test_broken_queries_score_nothing(backend: Any, data: st.DataObject) -> None:
    """Unchecked, a query with NaN or infinity changes nothing but its own output.

    NaN never spreads silently.
    """
    one, stream = data.draw(case_and_stream(SOME), label="case and stream")
    number = data.draw(st.sampled_from(BROKEN), label="broken number")
    b = data.draw(st.integers(0, stream.shape.batch - 1), label="row")
    i = data.draw(st.integers(0, stream.shape.seq - 1), label="query")
    at_step = data.draw(st.integers(0, len(stream.chunks) - 1), label="step")
    chunk = stream.chunks[at_step]
    query, silent = chunk.query.copy(), chunk.query_valid.copy()
    query[b, i, 0, 0] = number
    silent[b, i] = False
    broken = with_chunk(stream, at_step, replace(chunk, query=query))
    without = with_chunk(stream, at_step, replace(chunk, query_valid=silent))
    runner = Runner.of(backend, one)
    with at.value_checks(False):
        got, _, outputs = runner.run(broken)
        want, _, outputs2 = runner.run(without)
    where = f"{one.name}, query {i} of row {b} has {number} in step {at_step}"
    assert kept(got) == kept(want), f"{where}: kept {kept(got)}, without it {kept(want)}"
    comparing.assert_close(got.score, want.score, f"{where}: scores")
    outputs[at_step][b, i] = 0.0
    for step, (x, y) in enumerate(zip(outputs, outputs2, strict=True)):
        comparing.assert_close(x, y, f"{where}: output of step {step}")


@law()
@given(data=st.data())
def test_checked_numbers_raise_and_leave_the_state_usable(
    backend: Any, data: st.DataObject
) -> None:
    """Eager code raises NonFiniteError, and the caller's state goes on as if nothing happened.

    A failed call leaves the caller's state usable.
    """
    drawn = case_and_stream(SOME[:2], padding=False, query_mode="own")
    one, stream = data.draw(drawn, label="case and stream")
    number = data.draw(st.sampled_from(BROKEN), label="broken number")
    field = data.draw(st.sampled_from(("key", "value", "query", "score")), label="where")
    runner = Runner.of(backend, one, compiled=False)
    if not backend.is_concrete(runner.array(np.zeros(1, dtype=np.float32))):
        pytest.skip(f"values of {backend.name!r} may not be read, so they are not checked")
    steady = Runner.of(backend, one)
    state = steady.init(stream.shape)
    for chunk in stream.chunks[:-1]:
        state, _, _ = steady.step(state, chunk)
    last = stream.chunks[-1]
    before = runner.numpy(state)
    if field == "score":
        array = np.zeros(last.valid.shape, dtype=np.float32)
        array[0, 0] = beyond(number)
    else:
        array = getattr(last, field).copy()
        array[0, 0, 0, 0] = number
    bad = replace(last, **{field: array})
    call = runner.attend if field == "query" else runner.insert
    with pytest.raises(at.errors.NonFiniteError, match=field):
        call(state, bad)
    comparing.assert_same(runner.numpy(state), before, f"{one.name}, after the error: state")
    got = steady.run(Stream(stream.shape, (last,), stream.exact), state)
    want = steady.run(stream)
    comparing.assert_same(got[0], want[0], f"{one.name}, after the error: state one step later")


def with_chunk(stream: Stream, step: int, chunk: Any) -> Stream:
    """Return the stream with one chunk replaced."""
    chunks = list(stream.chunks)
    chunks[step] = chunk
    return Stream(stream.shape, tuple(chunks), stream.exact)


@pytest.mark.parametrize("field", ["key", "value", "query"])
@pytest.mark.parametrize("policy", [at.FIFO(), at.LRU(), at.LFU(), at.LFA()], ids=repr)
def test_huge_numbers_raise_whoever_scores(backend: Any, policy: Any, field: str) -> None:
    """Policies that never multiply keys refuse them, too, in the same words on every backend."""
    given = {name: np.ones((1, 2, 1, 2), dtype=np.float32) for name in ("key", "value", "query")}
    given[field][0, 1, 0, 0] = HUGE
    key, value, query = (backend.from_numpy(array) for array in given.values())
    if not backend.is_concrete(key):
        pytest.skip(f"values of {backend.name!r} may not be read, so they are not checked")
    memory = at.KeyValueMemory(4, policy)
    state = memory.init(batch=1, heads=1, head_dim=2, xp=backend)
    name, arrays = ("attend", (query,)) if field == "query" else ("insert", (key, value))
    said = f"^KeyValueMemory.{name}: {field} has NaN or infinity, or a number of 7e.16 or more, at "
    with pytest.raises(at.errors.NonFiniteError, match=said):
        getattr(memory, name)(state, *arrays)
