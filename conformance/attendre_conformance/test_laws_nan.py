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
from attendre_conformance.cases import EVERY, case_and_stream
from attendre_conformance.options import law
from attendre_conformance.running import Runner, kept
from attendre_conformance.streams import Stream

pytestmark = pytest.mark.attendre_profile("laws")

BROKEN = (float("nan"), float("inf"), float("-inf"))
SOME = [EVERY[n] for n in ("lru", "lfa-0", "sink", "lfa-decay", "lfa-softmax-hold")]


@law()
@given(data=st.data())
def test_broken_entries_are_refused(backend: Any, data: st.DataObject) -> None:
    """Unchecked, an entry with NaN or infinity is handed back, and all else is as without it.

    Issue, bad input: NaN never spreads silently from one slot to others.
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


@law()
@given(data=st.data())
def test_broken_queries_score_nothing(backend: Any, data: st.DataObject) -> None:
    """Unchecked, a query with NaN or infinity changes nothing but its own output.

    Issue, bad input: NaN never spreads silently.
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


@law(0.5)
@given(data=st.data())
def test_checked_numbers_raise_and_leave_the_state_usable(
    backend: Any, data: st.DataObject
) -> None:
    """Eager code raises NonFiniteError, and the caller's state goes on as if nothing happened.

    Issue, bad input: a failed call leaves the caller's state usable.
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
        array[0, 0] = number
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
