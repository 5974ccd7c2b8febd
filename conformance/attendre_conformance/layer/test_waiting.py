"""Laws of waiting: how late queries are, what travels with them, and how they are let go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import LAYERS, layer_and_text, layers_for, scored_queue
from attendre_conformance.layer.running import (
    LayerRunner,
    assert_belongings,
    assert_in_order,
    by_index,
    came_out,
    everything,
)
from attendre_conformance.layer.texts import STREAM, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.running import few, mixtures, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


@law()
@given(data=st.data())
def test_delay_is_exactly_n(backend: Any, data: st.DataObject) -> None:
    """Fed full chunks, a layer gives S outputs a step: N empty ones, then the input in order.

    Specification, readings 19 and 20: N below, above, equal to or no multiple of S, and N = 0.
    """
    size = data.draw(st.sampled_from(few(backend, (4, 0, 7, 1, 3, 11), 3)), label="N")
    text = data.draw(texts(STREAM, padding=False), label="text")
    queue = at.DataOnlyMemory(size) if size else None
    layer = at.AttendreLayer(at.KeyValueMemory(12), queue)
    assert layer.delay == size, f"delay is {layer.delay}, N is {size}"
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    went: list[list[int | None]] = [[] for _ in range(STREAM.batch)]
    for chunk in text.chunks(STREAM.seq):
        state, out = runner.step(state, chunk)
        assert out.valid.shape == (STREAM.batch, STREAM.seq), (
            f"N={size}: {out.valid.shape[1]} outputs in a step, expected S = {STREAM.seq}"
        )
        for b, row in enumerate(went):
            places = zip(out.metadata["index"][b], out.valid[b], strict=True)
            row += [int(i) if ok else None for i, ok in places]
    want = ([None] * size + list(range(STREAM.length)))[: STREAM.length]
    for b, row in enumerate(went):
        assert row == want, f"N={size}, S={STREAM.seq}, row {b}: out came {row}, expected {want}"


@law()
@given(data=st.data())
def test_everything_travels_with_its_query(backend: Any, data: st.DataObject) -> None:
    """Carry, position, document and metadata come out with their query; padding pushes none out.

    Specification, readings 16, 20, 21: after n valid positions of a row, its first n - N are out.
    """
    names = [name for name in LAYERS if name != "lra-scored-queue"]
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend, names), documents=3), label="layer and text"
    )
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    outputs = []
    for number, chunk in enumerate(text.chunks(STREAM.seq)):
        state, out = runner.step(state, chunk)
        outputs.append(out)
        for b, got in enumerate(came_out(outputs)):
            read = np.nonzero(text.valid[b, : (number + 1) * STREAM.seq])[0].tolist()
            want = read[: max(0, len(read) - layer.delay)]
            assert got == want, (
                f"{name}, step {number}, row {b}: out came the places {got}, expected {want}, "
                f"the places read but for the last N = {layer.delay}"
            )
        assert np.all(out.value[~out.valid] == 0), f"{name}: values of no query are not zeros"
    assert_belongings(outputs, text, name)
    if layer.q_memory is not None:
        state, rest = runner.finish(state, STREAM.heads)
        assert_in_order([*outputs, rest], text, f"{name}, flushed")
        assert_belongings([rest], text, f"{name}, flushed")
        assert not to_numpy(backend, state.queue.valid).any(), f"{name}: flushed, but some wait"


@law()
@given(data=st.data())
def test_drain_equals_flush(backend: Any, data: st.DataObject) -> None:
    """Drained in pieces of any length, a layer gives what it gives when flushed, evicting or not.

    Specification, readings 23-25.
    """
    names = [name for name in LAYERS if LAYERS[name].q_memory is not None]
    name, length = data.draw(
        mixtures(backend, names, (2, 3, 1, 5, 20)), label="layer, drained at a time"
    )
    _, layer, text = data.draw(layer_and_text([name], reshaped=True), label="layer, text")
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq):
        state, _ = runner.step(state, chunk)
    flushed, want = runner.finish(state, STREAM.heads)
    drained, got = runner.finish(state, STREAM.heads, length)
    where = f"{name}, drained {length} at a time"
    for field in ("valid", "position", "carry", "metadata"):
        one, two = getattr(got, field), getattr(want, field)
        if field == "metadata":
            one, two = one["index"], two["index"]
        comparing.assert_same(one[got.valid], two[want.valid], f"{where}: {field}")
    comparing.assert_close(got.value, want.value, f"{where}: value")
    one, two = kept(to_numpy(backend, drained.kv)), kept(to_numpy(backend, flushed.kv))
    assert one == two, f"{where}: keeps {one}, flushed {two}"
    again = runner.finish(drained, STREAM.heads)[1]
    assert not again.valid.any(), f"{where}: a second flush gave {came_out([again])} again"


@law()
@given(data=st.data())
def test_reading_goes_on_after_a_flush(backend: Any, data: st.DataObject) -> None:
    """After a flush the queue waits anew: the second text comes out complete, N late again.

    Specification, readings 19, 20, 24.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend, ("lfa-top-k-t5", "fifo", "sink-lm-infinite"))),
        label="layer, text",
    )
    runner = LayerRunner(backend, layer)
    state, outputs = runner.run(text, STREAM.seq)
    assert_in_order(outputs, text, f"{name}, first text")
    more = data.draw(texts(STREAM), label="second text")
    more = more.but(
        position=np.where(more.valid, more.position + 500, more.position).astype(np.int32)
    )
    outputs = []
    for number, chunk in enumerate(more.chunks(STREAM.seq)):
        state, out = runner.step(state, chunk)
        outputs.append(out)
        for b, got in enumerate(came_out(outputs)):
            read = np.nonzero(more.valid[b, : (number + 1) * STREAM.seq])[0].tolist()
            want = read[: max(0, len(read) - layer.delay)]
            assert got == want, f"{name}, second text, row {b}: out came {got}, expected {want}"


@law()
@given(data=st.data())
def test_queue_that_is_not_first_in_first_out(backend: Any, data: st.DataObject) -> None:
    """A Q memory with scores loses no query and gives none twice; positions restore the order.

    Specification, reading 27. With room for everything each query gets what it gets in order.
    """
    text = data.draw(texts(STREAM, scored=True), label="text")
    size = data.draw(st.sampled_from(few(backend, (4, 7, 2), 2)), label="N")
    layer = replace(
        LAYERS["lra-scored-queue"],
        kv_memory=at.KeyValueMemory(12),
        q_memory=scored_queue(size),
        top_k=None,
    )
    runner = LayerRunner(backend, layer)
    _, outputs = runner.run(text, STREAM.seq)
    for b, got in enumerate(came_out(outputs)):
        want = np.nonzero(text.valid[b])[0].tolist()
        assert sorted(got) == want, f"row {b}: out came the places {got}, expected all of {want}"
        places = np.concatenate([out.position[b][out.valid[b]] for out in outputs])
        restored = [got[n] for n in np.argsort(places, kind="stable")]
        assert restored == want, f"row {b}: sorted by position {restored}, expected {want}"
    assert_belongings(outputs, text, "scored queue")


@law()
@given(data=st.data())
def test_marked_queries_wait_until_the_end(backend: Any, data: st.DataObject) -> None:
    """What the Q memory's policy keeps attends when all is read, to all that is held.

    With M of the length of the input that is full attention, though N is small. The first query
    of each row waits under `AttentionSink`, any query under a policy that ranks by scores; the
    marked ones count in N. Specification, reading 27.
    """
    by_score = data.draw(st.booleans(), label="marked by scores")
    text = data.draw(texts(STREAM, exact=False), label="text")
    policy = at.LFA(decay=0.0) if by_score else at.AttentionSink(sinks=1)
    layer = at.AttendreLayer(at.KeyValueMemory(13, at.LFA()), at.DataOnlyMemory(4, policy))
    marked = np.zeros((STREAM.batch, STREAM.length), dtype=np.float32)
    for b, valid in enumerate(text.valid):
        places = np.nonzero(valid)[0].tolist()
        count = data.draw(st.integers(0, 2), label="marked") if by_score else 1
        shuffled = data.draw(st.permutations(places), label="places") if by_score else places
        marked[b, shuffled[:count]] = 1
    text = replace(text, query_score=marked)
    runner = LayerRunner(backend, layer)
    state, outputs = runner.read(text, STREAM.seq)
    _, rest = runner.finish(state, STREAM.heads)
    want, got = everything(layer, text), by_index([rest], STREAM.length)
    for b, valid in enumerate(text.valid):
        late = rest.metadata["index"][b][rest.valid[b]].tolist()
        chosen = np.nonzero(marked[b])[0].tolist()
        assert set(chosen) <= set(late), f"row {b}: {chosen} should wait, {late} did"
        everyone = sorted(came_out([*outputs, rest])[b])
        assert everyone == np.nonzero(valid)[0].tolist(), f"row {b}: out came {everyone}"
        for place in chosen:
            comparing.assert_close(got[b, place], want[b, place], f"row {b}, query {place}")
