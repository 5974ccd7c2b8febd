"""Laws of rows and padding: every row is a memory of its own, and padding is nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.memory import against_oracle
from attendre_conformance.memory.cases import CORE, FEW, Case, case_and_stream
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import (
    Chunk,
    Stream,
    scattered,
    seeded,
    streams,
    with_garbage,
)
from attendre_conformance.options import law

pytestmark = pytest.mark.attendre_profile("laws")


def assert_rows_agree(
    one: Case, got: Any, want: Any, got_rows: list[int], want_rows: list[int], what: str
) -> None:
    """Compare rows of two results of `Runner.run`: entries, scores, evicted, outputs."""
    state, evicted, outputs = got
    state2, evicted2, outputs2 = want
    entries, entries2 = one.memory.entries(state), one.memory.entries(state2)
    heads = range(entries.key.shape[2]) if one.rule.per_head else [None]
    for b, c in zip(got_rows, want_rows, strict=True):
        for g in heads:
            here = f"{what}: row {b} against row {c}, head {g}"
            held, held2 = (
                against_oracle.stored_items(entries, b, g),
                against_oracle.stored_items(entries2, c, g),
            )
            assert held == held2, f"{here}: holds {sorted(held)}, expected {sorted(held2)}"
            assert_scores_agree(state, state2, b, c, g, here)
            for number, (one_out, two_out) in enumerate(zip(evicted, evicted2, strict=True)):
                out = against_oracle.evicted_items(one_out, b, g)
                out2 = against_oracle.evicted_items(two_out, c, g)
                assert out == out2, (
                    f"{here}, step {number}: evicted {sorted(out)}, expected {sorted(out2)}"
                )
        for number, (a, z) in enumerate(zip(outputs, outputs2, strict=True)):
            comparing.assert_close(
                a[b], z[c], f"{what}: output of row {b} against row {c}, step {number}"
            )


def assert_scores_agree(state: Any, state2: Any, b: int, c: int, g: int | None, here: str) -> None:
    """Compare the scores of one row of two states, entry by entry."""

    def by_position(some: Any, row: int) -> dict[int, tuple[int, float]]:
        part = (row,) if g is None else (row, g)
        ok = some.valid[part]
        return {
            int(p): (int(a), float(x))
            for p, a, x in zip(
                some.position[part][ok], some.arrival[part][ok], some.score[part][ok], strict=True
            )
        }

    got, want = by_position(state, b), by_position(state2, c)
    for place in want:
        assert got[place][0] == want[place][0], (
            f"{here}: arrival {got[place][0]} at position {place}, expected {want[place][0]}"
        )
        comparing.assert_close(
            np.asarray(got[place][1]),
            np.asarray(want[place][1]),
            f"{here}: score at position {place}",
        )
    assert state.clock[b] == state2.clock[c], (
        f"{here}: clock {state.clock[b]}, expected {state2.clock[c]}"
    )


@law()
@given(data=st.data())
def test_rows_are_independent(backend: Any, data: st.DataObject) -> None:
    """What happens in one row does not depend on what is in the others.

    Specification, law-rows.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    seed = data.draw(st.integers(0, 2**16), label="seed of the other rows")
    other = seeded(
        stream.shape,
        np.random.default_rng(seed),
        steps=len(stream.chunks),
        with_pinned=one.pinned,
    )
    every = st.tuples(*[st.booleans()] * stream.shape.batch)
    flags = data.draw(every, label="rows of the first group")
    rows = [b for b, stays in enumerate(flags) if stays]
    others = [b for b, stays in enumerate(flags) if not stays]
    runner = Runner.of(backend, one)
    want = runner.run(stream)
    for own in (rows, others):
        pairs = zip(other.chunks, stream.chunks, strict=True)
        mixed = Stream(stream.shape, tuple(splice(a, z, own) for a, z in pairs), stream.exact)
        assert_rows_agree(
            one, runner.run(mixed), want, own, own, f"{one.name}, {own} beside others"
        )


def splice(base: Chunk, source: Chunk, rows: list[int]) -> Chunk:
    """Return ``base`` with some rows taken from ``source``."""
    fields = {}
    for name in base.__dataclass_fields__:
        array = getattr(base, name)
        if array is not None:
            array = array.copy()
            array[rows] = getattr(source, name)[rows]
        fields[name] = array
    return Chunk(**fields)


@law()
@given(data=st.data())
def test_permuting_rows_permutes_results(backend: Any, data: st.DataObject) -> None:
    """Permuting the rows of a batch permutes everything that comes out.

    Specification, law-rows.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    rows = list(range(stream.shape.batch))
    order = data.draw(st.permutations(rows), label="order of the rows")
    permuted = Stream(
        stream.shape, tuple(chunk.rows(order) for chunk in stream.chunks), stream.exact
    )
    runner = Runner.of(backend, one)
    assert_rows_agree(
        one, runner.run(permuted), runner.run(stream), rows, list(order), f"{one.name}, permuted"
    )


@law()
@given(data=st.data())
def test_contents_of_padding_change_nothing(backend: Any, data: st.DataObject) -> None:
    """Whatever numbers are in padding entries and padding queries, nothing changes.

    Specification, reading 16.
    """
    one, stream = data.draw(case_and_stream(CORE), label="case and stream")
    number = data.draw(st.sampled_from((0.0, -3e4, 1e30)), label="what is in the padding")
    runner = Runner.of(backend, one)
    rows = list(range(stream.shape.batch))
    got = runner.run(with_garbage(stream, number))
    assert_rows_agree(one, got, runner.run(stream), rows, rows, f"{one.name}, padding {number}")


@law()
@given(data=st.data())
def test_amount_of_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """Padding on the left, on the right or in between, of any amount, changes nothing.

    Specification, law-padding; reading 16.
    """
    one, stream = data.draw(case_and_stream(FEW, max_steps=3), label="case and stream")
    extra = 3
    seed = data.draw(st.integers(0, 2**16), label="seed of the places")
    side = data.draw(st.sampled_from(("left", "right", "anywhere")), label="side")
    rng = np.random.default_rng(seed)
    seq, batch = stream.shape.seq, stream.shape.batch
    chunks, places = [], []
    for chunk in stream.chunks:
        if side == "anywhere":
            place = np.stack(
                [np.sort(rng.choice(seq + extra, seq, replace=False)) for _ in range(batch)]
            )
        else:
            first = extra if side == "left" else 0
            place = np.tile(np.arange(first, first + seq), (batch, 1))
        places.append(place)
        chunks.append(scattered(chunk, place, seq + extra))
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape, chunk=seq + extra)
    final, evicted, outputs = runner.run(Stream(stream.shape, tuple(chunks), True), state)
    back = [
        np.take_along_axis(output, place[:, :, None, None], axis=1)
        for output, place in zip(outputs, places, strict=True)
    ]
    rows = list(range(batch))
    assert_rows_agree(
        one, (final, evicted, back), runner.run(stream), rows, rows, f"{one.name}, padding {side}"
    )


@law()
@given(data=st.data())
def test_chunk_of_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """A chunk that is all padding evicts nothing, attends to nothing and changes no state.

    Specification, reading 16.
    """
    one, stream = data.draw(case_and_stream(CORE, max_steps=4), label="case and stream")
    runner = Runner.of(backend, one)
    state = runner.init(stream.shape)
    for chunk in stream.chunks:
        state, _, _ = runner.step(state, chunk)
    last = stream.chunks[-1]
    blank = Chunk(
        **{
            **{name: getattr(last, name) for name in last.__dataclass_fields__},
            "valid": np.zeros_like(last.valid),
            "query_valid": np.zeros_like(last.query_valid),
        }
    )
    before = runner.numpy(state)
    after, evicted, output = runner.step(state, blank)
    after, evicted = runner.numpy(after), runner.numpy(evicted)
    assert not evicted.valid.any(), (
        f"{one.name}: padding displaced {evicted.position[evicted.valid].tolist()}"
    )
    assert not runner.numpy(output).any(), f"{one.name}: outputs of padding queries are not zero"
    for name in ("valid", "score", "arrival", "clock", "latest_query"):
        comparing.assert_same(
            getattr(after, name), getattr(before, name), f"{one.name}, after padding: {name}"
        )
    assert kept(after) == kept(before), (
        f"{one.name}: kept {kept(after)} after padding, {kept(before)} before"
    )


@law()
@given(data=st.data())
def test_reset_row_is_a_fresh_row(backend: Any, data: st.DataObject) -> None:
    """A row that was reset goes on as a new one; the others go on as if nothing had happened."""
    one, first = data.draw(case_and_stream(FEW, max_steps=2), label="case and first stream")
    second = data.draw(streams(one.shape, max_steps=2, first=100), label="second stream")
    chosen = data.draw(
        st.lists(st.booleans(), min_size=one.shape.batch, max_size=one.shape.batch),
        label="rows to reset",
    )
    runner = Runner.of(backend, one)
    state = runner.init(one.shape)
    for chunk in first.chunks:
        state, _, _ = runner.step(state, chunk)
    emptied = runner.reset(state, chosen)
    got, fresh, old = (runner.run(second, s) for s in (emptied, None, state))
    for b, was_reset in enumerate(chosen):
        assert_rows_agree(
            one, got, fresh if was_reset else old, [b], [b], f"{one.name}, reset {chosen}"
        )


@law()
@given(data=st.data())
def test_reorder_takes_rows_with_everything(backend: Any, data: st.DataObject) -> None:
    """Reordering rows (with repeats, as in beam search) takes their whole past along."""
    one, first = data.draw(case_and_stream(FEW, max_steps=2), label="case and first stream")
    second = data.draw(streams(one.shape, max_steps=2, first=100), label="second stream")
    batch = one.shape.batch
    index = data.draw(
        st.lists(st.integers(0, batch - 1), min_size=batch, max_size=batch), label="index"
    )
    runner = Runner.of(backend, one)
    state = runner.init(one.shape)
    for chunk in first.chunks:
        state, _, _ = runner.step(state, chunk)
    moved = runner.reorder(state, index)
    for name in ("position", "valid", "score", "arrival", "clock", "latest_query"):
        comparing.assert_same(
            runner.numpy(getattr(moved, name)),
            runner.numpy(getattr(state, name))[index],
            f"{one.name}, reordered: {name}",
        )
    # All rows go on in the same way, so row b now does what row index[b] would have done.
    same = tuple(chunk.rows([0] * batch) for chunk in second.chunks)
    got, want = (runner.run(Stream(one.shape, same, True), s) for s in (moved, state))
    assert_rows_agree(one, got, want, list(range(batch)), index, f"{one.name}, reordered {index}")
