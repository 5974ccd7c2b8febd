"""Laws of the layer: what changes nothing."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import layer_and_text, layers_for
from attendre_conformance.layer.running import LayerRunner, assert_in_order, by_index, came_out
from attendre_conformance.layer.texts import STREAM, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.running import from_numpy, mixtures, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


@law()
@given(data=st.data())
def test_chunk_length_changes_nothing_without_eviction(backend: Any, data: st.DataObject) -> None:
    """While nothing is evicted, a flushed layer gives the same whatever the chunk length.

    Specification, law-chunking.
    """
    text = data.draw(texts(STREAM, exact=False), label="text")
    lengths = (2, 5, 1, 12, 20)
    causal, seq = data.draw(mixtures(backend, (True, False), lengths), label="causal, S")
    queue = None if causal else at.DataOnlyMemory(12)
    layer = at.AttendreLayer(
        at.KeyValueMemory(13, at.LFA()), queue, causal=causal, encoding=at.LMInfinite(4)
    )
    runner = LayerRunner(backend, layer)
    want = by_index(runner.run(text, STREAM.seq)[1], STREAM.length)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.ChunkTooLongWarning)
        outputs = runner.run(text, seq)[1]
    assert_in_order(outputs, text, f"S={seq}")
    got = by_index(outputs, STREAM.length)
    comparing.assert_close(got, want, f"S={seq} against S={STREAM.seq}: output")


@law()
@given(data=st.data())
def test_chunk_length_does_not_change_what_fifo_keeps(backend: Any, data: st.DataObject) -> None:
    """First in, first out (and sinks) keeps the same positions whatever the chunk length and N.

    Specification, law-chunking: FIFO always.
    """
    sinks, size, seq = data.draw(
        mixtures(backend, (2, 0), (2, 4), (2, 5, 1, 4), most=2), label="sinks, N, S"
    )
    text = data.draw(texts(STREAM), label="text")
    layer = at.AttendreLayer(
        at.KeyValueMemory(5, at.AttentionSink(sinks)), at.DataOnlyMemory(size), encoding=at.ALiBi()
    )
    runner = LayerRunner(backend, layer)
    want_state = kept(to_numpy(backend, runner.read(text, STREAM.seq)[0].kv))
    for b, row in enumerate(want_state):
        read = text.position[b][text.valid[b]].tolist()
        first, rest = read[:sinks], read[sinks:]
        want = sorted(first + rest[max(0, len(rest) - (5 - sinks)) :])
        assert row == want, f"row {b}: keeps {row}, expected {want}"
    got = kept(to_numpy(backend, runner.read(text, seq)[0].kv))
    assert got == want_state, f"S={seq} keeps {got}, S={STREAM.seq} {want_state}"


@law()
@given(data=st.data())
def test_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """Padding before, between and after the positions of a chunk, and chunks of it: no change.

    Specification, law-padding; reading 16.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), reshaped=True, documents=2),
        label="layer, text",
    )
    wide = STREAM.seq + 2
    runner = LayerRunner(backend, layer)
    state, want = runner.run(text, STREAM.seq)
    other = runner.init(text, wide)
    length = STREAM.length // STREAM.seq * wide
    places = np.zeros((STREAM.batch, STREAM.length), dtype=np.int64)
    for b in range(STREAM.batch):
        for start in range(0, STREAM.length, STREAM.seq):
            chosen = data.draw(
                st.sets(st.integers(0, wide - 1), min_size=STREAM.seq, max_size=STREAM.seq),
                label=f"places of row {b}, chunk {start // STREAM.seq}",
            )
            places[b, start : start + STREAM.seq] = sorted(chosen)
            places[b, start : start + STREAM.seq] += start // STREAM.seq * wide
    spread = text.spread(places, length)
    blank = spread.spread(np.tile(np.arange(length) + wide, (STREAM.batch, 1)), length + wide)
    got = []
    for number, chunk in enumerate(spread.chunks(wide)):
        if number % 2 == 1:
            other, out = runner.step(other, blank.chunks(wide)[0])  # nothing but padding
            assert not out.valid.any(), f"{name}: padding pushed out {came_out([out])}"
        other, out = runner.step(other, chunk)
        got.append(out)
    if layer.q_memory is not None:
        other, out = runner.finish(other, STREAM.heads)
        got.append(out)
    one, two = kept(to_numpy(backend, other.kv)), kept(to_numpy(backend, state.kv))
    assert one == two, f"{name}: keeps {one} with padding, {two} without"
    assert came_out(got) == came_out(want), (
        f"{name}: out came {came_out(got)} with padding, {came_out(want)} without"
    )
    comparing.assert_close(
        by_index(got, STREAM.length), by_index(want, STREAM.length), f"{name}: output"
    )


@law()
@given(data=st.data())
def test_positions_count_on_from_what_was_read(backend: Any, data: st.DataObject) -> None:
    """Without positions a row counts its own valid entries, from 0, across chunks.

    Specification, reading 18: positions are stored, never derived from lengths; padding does not
    count.
    """
    _, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    counted = np.cumsum(text.valid, axis=1) - 1
    text = text.but(position=np.where(text.valid, counted, text.position).astype(np.int32))
    runner = LayerRunner(backend, layer)
    state, other = runner.init(text, STREAM.seq), runner.init(text, STREAM.seq)
    for number, chunk in enumerate(text.chunks(STREAM.seq)):
        state, want = runner.step(state, chunk)
        other, got = runner.step(other, chunk._replace(position=None))
        comparing.assert_same(
            got.position[got.valid], want.position[want.valid], f"step {number}: positions"
        )
        comparing.assert_same(got.value, want.value, f"step {number}: value")


@law()
@given(data=st.data())
def test_input_state_is_unchanged_and_donating_changes_nothing(
    backend: Any, data: st.DataObject
) -> None:
    """A step leaves the state it was given alone; donated, it gives the same results.

    Specification, law-purity.
    """
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    runner = LayerRunner(backend, layer)
    state, gift = runner.init(text, STREAM.seq), runner.init(text, STREAM.seq)
    for number, chunk in enumerate(text.chunks(STREAM.seq)):
        before = to_numpy(backend, state)
        after, out = runner.step(state, chunk)
        comparing.assert_same(
            to_numpy(backend, state), before, f"{name}, step {number}: input state"
        )
        if not runner.compiled:
            gift, given_up = layer.step(
                gift,
                from_numpy(backend, chunk),
                encoding_params=runner.table(STREAM.heads, STREAM.head_dim),
                donate=True,
            )
            comparing.assert_same(
                to_numpy(backend, given_up), out, f"{name}, step {number}: output, donated"
            )
        state = after


@law()
@given(data=st.data())
def test_state_carried_to_numpy_and_back(backend: Any, data: st.DataObject) -> None:
    """A state taken to NumPy and back in mid-stream goes on as if it had never stopped.

    Specification, law-restore.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), documents=2), label="layer, text"
    )
    stop = data.draw(st.integers(0, 4), label="stop before chunk")
    runner = LayerRunner(backend, layer)
    state, other = runner.init(text, STREAM.seq), runner.init(text, STREAM.seq)
    for number, chunk in enumerate([*text.chunks(STREAM.seq), None]):
        if number == stop:
            other = at.convert(at.convert(other, "numpy"), backend)
        if chunk is not None:
            state, want = runner.step(state, chunk)
            other, got = runner.step(other, chunk)
        elif layer.q_memory is not None:
            state, want = runner.finish(state, STREAM.heads)
            other, got = runner.finish(other, STREAM.heads)
        comparing.assert_same(got, want, f"{name}, step {number}")
    comparing.assert_same(to_numpy(backend, other), to_numpy(backend, state), f"{name}: last state")
