"""Laws of the rows of a layer: independent, exchangeable, one by one made new."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.layer.cases import layer_and_text, layers_for
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import STREAM, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.running import to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


@law()
@given(data=st.data())
def test_rows_do_not_influence_each_other(backend: Any, data: st.DataObject) -> None:
    """A row of a ragged batch gives what it gives alone, and the others what they give without it.

    Specification, law-rows.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), documents=2), label="layer, text"
    )
    order = data.draw(st.permutations(range(STREAM.batch)), label="the row alone, then the others")
    runner = LayerRunner(backend, layer)
    state, outputs = runner.run(text, STREAM.seq)
    together, given = kept(to_numpy(backend, state.kv)), by_index(outputs, STREAM.length)
    for rows in (order[:1], order[1:]):
        state, outputs = runner.run(text.rows(rows), STREAM.seq)
        one, two = kept(to_numpy(backend, state.kv)), [together[b] for b in rows]
        assert one == two, f"{name}: rows {rows} keep {one} by themselves, {two} among all"
        comparing.assert_close(
            by_index(outputs, STREAM.length),
            given[rows],
            f"{name}, rows {rows} by themselves against all: output",
        )


@law()
@given(data=st.data())
def test_permuting_rows_permutes_results(backend: Any, data: st.DataObject) -> None:
    """Rows in another order give the same results in that order.

    Specification, law-rows.
    """
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    index = data.draw(st.permutations(range(STREAM.batch)), label="order of rows")
    runner = LayerRunner(backend, layer)
    state, outputs = runner.run(text, STREAM.seq)
    other, permuted = runner.run(text.rows(index), STREAM.seq)
    one, two = kept(to_numpy(backend, other.kv)), kept(to_numpy(backend, state.kv))
    assert one == [two[b] for b in index], f"{name}: keeps {one}, in the first order {two}"
    comparing.assert_close(
        by_index(permuted, STREAM.length),
        by_index(outputs, STREAM.length)[list(index)],
        f"{name}: output",
    )


@law()
@given(data=st.data())
def test_reset_row_is_a_fresh_row(backend: Any, data: st.DataObject) -> None:
    """A row reset at a boundary goes on as a fresh row, the others as if nothing had happened."""
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    rows = np.asarray(data.draw(st.tuples(*[st.booleans()] * STREAM.batch), label="rows to reset"))
    runner = LayerRunner(backend, layer)
    old = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq)[:3]:
        old, _ = runner.step(old, chunk)
    states = {
        "reset": layer.reset(old, backend.from_numpy(rows)),
        "fresh": runner.init(text, STREAM.seq),
        "old": old,
    }
    scored = name == "lra-scored-queue"
    more = data.draw(texts(STREAM, scored=scored), label="next document")
    for number, chunk in enumerate(more.chunks(STREAM.seq)[:3]):
        outs = {}
        for key in states:
            states[key], outs[key] = runner.step(states[key], chunk)
        for b in range(STREAM.batch):
            model = "fresh" if rows[b] else "old"
            ok = outs[model].valid[b]
            where = f"{name}, step {number}, row {b}, like {model}"
            comparing.assert_same(outs["reset"].valid[b], ok, f"{where}: valid")
            for field in ("value", "position", "carry"):
                comparing.assert_close(
                    getattr(outs["reset"], field)[b][ok],
                    getattr(outs[model], field)[b][ok],
                    f"{where}: {field}",
                )


@law()
@given(data=st.data())
def test_reorder_takes_rows_with_all_that_waits(backend: Any, data: st.DataObject) -> None:
    """Reordered, row i is what row index[i] was: memory and waiting queries."""
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    each = st.integers(0, STREAM.batch - 1)
    index = data.draw(st.tuples(*[each] * STREAM.batch), label="index")
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq)[:3]:
        state, _ = runner.step(state, chunk)
    moved = layer.reorder(state, backend.from_numpy(np.asarray(index, dtype=np.int32)))
    last = text.chunks(STREAM.seq)[3]
    state, want = runner.step(state, last)
    taken = text.rows(index).chunks(STREAM.seq)[3]
    moved, got = runner.step(moved, taken)
    for b, row in enumerate(index):
        ok = want.valid[row]
        comparing.assert_same(got.valid[b], ok, f"{name}, row {b} from {row}: valid")
        for field in ("value", "carry", "position"):
            comparing.assert_close(
                getattr(got, field)[b][ok],
                getattr(want, field)[row][ok],
                f"{name}, row {b} from {row}: {field}",
            )
