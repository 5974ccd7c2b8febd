"""Laws of the Attendre layer: what waits, what it attends to, and what changes nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer_cases import (
    FAMILIES,
    LAYERS,
    SCHEMES,
    STREAM,
    WHOLE,
    LayerRunner,
    Text,
    assert_belongings,
    assert_in_order,
    by_index,
    came_out,
    compiles,
    few,
    layer_and_text,
    layers_for,
    oracle_layers,
    oracle_queries,
    scheme_rule,
    seeded_text,
    table_for,
    texts,
)
from attendre_conformance.layer_oracle import full_attention
from attendre_conformance.options import law
from attendre_conformance.running import from_numpy, kept, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


def everything(layer: Any, text: Text, **options: Any) -> Any:
    """Return full attention by brute force, (batch, length, heads, dim)."""
    rule, table = scheme_rule(layer.encoding), table_for(layer.encoding, text.query.shape[2])
    return np.stack(
        [
            full_attention(
                text.query[b],
                text.key[b],
                text.value[b],
                text.position[b],
                text.valid[b],
                rule=rule,
                causal=layer.causal,
                table=table,
                document=None if text.document is None else text.document[b],
                **options,
            )
            for b in range(text.valid.shape[0])
        ]
    )


# -- full attention ------------------------------------------------------------------------------


@pytest.mark.parametrize("family", SCHEMES)
@law(0.1)
@given(data=st.data())
def test_large_layer_is_full_bidirectional_attention(
    backend: Any, family: str, data: st.DataObject
) -> None:
    """M >= T, N >= T, K = all, flushed: every position attends to all, for every position scheme.

    SPEC, laws; rows 19-24 and 30-34.
    """
    encoding = data.draw(st.sampled_from(few(backend, SCHEMES[family])), label="encoding")
    text = data.draw(texts(WHOLE, exact=False), label="text")
    seq = data.draw(st.sampled_from(few(backend, (4, 1, 9))), label="S")
    layer = at.AttendreLayer(at.KeyValueMemory(12), at.DataOnlyMemory(10), encoding=encoding)
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    where = f"{encoding}, S={seq}"
    assert_in_order(outputs, text, where)
    comparing.assert_close(
        by_index(outputs, WHOLE.length), everything(layer, text), f"{where}: output by position"
    )


@law(0.6)
@given(data=st.data())
def test_large_causal_layer_is_full_causal_attention(backend: Any, data: st.DataObject) -> None:
    """N = 0, M >= T, causal: every position attends to all up to itself, for every scheme.

    SPEC, laws; row 18.
    """
    every = [one for family in ("rope", *SCHEMES) for one in SCHEMES[family]]
    encoding = data.draw(st.sampled_from(few(backend, every)), label="encoding")
    text = data.draw(texts(WHOLE, exact=False), label="text")
    seq = data.draw(st.sampled_from(few(backend, (4, 1, 9))), label="S")
    per_head = data.draw(st.booleans(), label="per head") and not compiles(backend)
    layer = at.AttendreLayer(
        at.KeyValueMemory(12, per_head=per_head), causal=True, encoding=encoding
    )
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    where = f"{encoding}, S={seq}"
    assert_in_order(outputs, text, where)
    comparing.assert_close(
        by_index(outputs, WHOLE.length), everything(layer, text), f"{where}: output by position"
    )


@law(0.1)
@given(data=st.data())
def test_memory_of_one_chunk_is_independent_chunks(backend: Any, data: st.DataObject) -> None:
    """M = S, N = 0, FIFO, full chunks: every chunk attends to itself alone.

    SPEC, row 2 and laws: MT(M=S, N=0) = independent chunks.
    """
    causal = data.draw(st.sampled_from(few(backend, (False, True))), label="causal")
    text = data.draw(texts(STREAM, exact=False, padding=False), label="text")
    seq = STREAM.seq
    layer = at.AttendreLayer(at.KeyValueMemory(seq), causal=causal)
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    alone = text.but(document=np.tile(np.arange(STREAM.length) // seq, (STREAM.batch, 1)))
    comparing.assert_close(
        by_index(outputs, STREAM.length), everything(layer, alone), "output by position"
    )


# -- waiting -------------------------------------------------------------------------------------


@law(0.2)
@given(data=st.data())
def test_delay_is_exactly_n(backend: Any, data: st.DataObject) -> None:
    """Fed full chunks, a layer gives S outputs a step: N empty ones, then the input in order.

    SPEC, rows 19 and 20: N below, above, equal to or no multiple of S, and N = 0.
    """
    size = data.draw(st.sampled_from(few(backend, (4, 0, 1, 3, 7, 11))), label="N")
    text = data.draw(texts(STREAM, padding=False), label="text")
    queue = at.DataOnlyMemory(size) if size else None
    layer = at.AttendreLayer(at.KeyValueMemory(12), queue)
    assert layer.delay == size, f"delay is {layer.delay}, N is {size}"
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    went: list[int | None] = []
    for chunk in text.chunks(STREAM.seq):
        state, out = runner.step(state, chunk)
        assert out.valid.shape == (STREAM.batch, STREAM.seq), (
            f"N={size}: {out.valid.shape[1]} outputs in a step, expected S = {STREAM.seq}"
        )
        went += [
            int(i) if ok else None
            for i, ok in zip(out.metadata["index"][1], out.valid[1], strict=True)
        ]
    want = ([None] * size + list(range(STREAM.length)))[: STREAM.length]
    assert went == want, f"N={size}, S={STREAM.seq}: out came {went}, expected {want}"


@law(0.2)
@given(data=st.data())
def test_everything_travels_with_its_query(backend: Any, data: st.DataObject) -> None:
    """Carry, position, document and metadata come out with their query; padding pushes none out.

    SPEC, rows 16, 20, 21: after n valid positions of a row, its first n - N are out.
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


@law(0.2)
@given(data=st.data())
def test_drain_equals_flush(backend: Any, data: st.DataObject) -> None:
    """Drained in pieces of any length, a layer gives what it gives when flushed, evicting or not.

    SPEC, rows 23-25.
    """
    names = [name for name in LAYERS if LAYERS[name].q_memory is not None]
    name, layer, text = data.draw(layer_and_text(layers_for(backend, names)), label="layer, text")
    length = data.draw(st.sampled_from(few(backend, (2, 1, 3, 5, 20))), label="drained at a time")
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


@law(0.2)
@given(data=st.data())
def test_reading_goes_on_after_a_flush(backend: Any, data: st.DataObject) -> None:
    """After a flush the queue waits anew: the second text comes out complete, N late again.

    SPEC, rows 19, 20, 24.
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


# -- small memories ------------------------------------------------------------------------------


def compare(backend: Any, name: str, layer: Any, text: Text, compiled: bool | None = None) -> bool:
    """Run a text on both sides; returns whether it could be compared to the end."""
    runner = LayerRunner(backend, layer, compiled)
    oracles = oracle_layers(layer, text)
    state = runner.init(text, STREAM.seq)
    chunks = text.chunks(STREAM.seq)
    for number in range(len(chunks) + (layer.q_memory is not None)):
        flushing = number == len(chunks)
        where = f"{name}, flush" if flushing else f"{name}, step {number}"
        if flushing:
            state, out = runner.finish(state, STREAM.heads)
            answers = [oracle.flush() for oracle in oracles]
        else:
            chunk = chunks[number]
            state, out = runner.step(state, chunk)
            answers = []
            for b, oracle in enumerate(oracles):
                score = None if chunk.query_score is None else chunk.query_score[b].tolist()
                step = oracle.step(oracle_queries(chunk, b), chunk.key[b], chunk.value[b], score)
                answers.append(step.answers)
        if min(oracle.gap for oracle in oracles) < comparing.NEAR:
            return False
        got, want = kept(to_numpy(backend, state.kv)), [oracle.kept() for oracle in oracles]
        if not layer.kv_memory.per_head:
            want = [row[0] for row in want]  # type: ignore[misc]
        assert got == want, f"{where}: positions kept {got}, the oracle keeps {want}"
        expected = np.zeros(out.value.shape)
        for b, row in enumerate(answers):
            due = [None if a is None else a.query.index for a in row]
            came = out.metadata["index"][b].tolist()
            came = [i if ok else None for i, ok in zip(came, out.valid[b], strict=True)]
            assert came == due, f"{where}, row {b}: out came the places {came}, expected {due}"
            for i, answer in enumerate(row):
                if answer is not None and len(answer.heads[0]):
                    expected[b, i] = np.stack(answer.heads)
        comparing.assert_close(out.value, expected, f"{where}: output (batch, query, head, dim)")
    return True


@pytest.mark.parametrize("family", FAMILIES)
@law(0.25)
@given(data=st.data())
def test_layer_equals_oracle(backend: Any, family: str, data: st.DataObject) -> None:
    """With a small M: the memory keeps, and every query gets, what the oracle's layer says.

    SPEC, rows 1-27: the step's order (evict, then attend), delay, scores under every scheme.
    """
    name = data.draw(st.sampled_from(few(backend, FAMILIES[family])), label="layer")
    text = data.draw(texts(STREAM, scored=name == "lra-scored-queue"), label="text")
    done = compare(backend, name, LAYERS[name], text)
    event("compared to the end" if done else "cut short by a near-tie")


@law(0.1)
@given(data=st.data())
def test_layer_with_documents_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """With a small M and document ids: pairs across documents are neither attended nor scored.

    SPEC, rows 8, 9, 18; issue, build 7.
    """
    names = ("lfa-top-k-t5", "lru-causal", "lfu-recent-pin", "per-head-lra-in-cache", "fifo")
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend, names), documents=4), label="layer, text"
    )
    done = compare(backend, name, layer, text)
    event("compared to the end" if done else "cut short by a near-tie")


def test_eager_layer_equals_oracle(backend: Any) -> None:
    """The same without any compiling, on every backend.

    SPEC, laws: eager and compiled keep the same index sets.
    """
    for seed in range(3):
        text = seeded_text(STREAM, seed, percent=25)
        name = "lfa-top-k-t5"
        compare(backend, name, LAYERS[name], text, compiled=False)


@law(0.2)
@given(data=st.data())
def test_queue_that_is_not_first_in_first_out(backend: Any, data: st.DataObject) -> None:
    """A Q memory with scores loses no query and gives none twice; positions restore the order.

    SPEC, row 27. With room for everything each query gets what it gets in order.
    """
    text = data.draw(texts(STREAM, scored=True), label="text")
    layer = replace(LAYERS["lra-scored-queue"], kv_memory=at.KeyValueMemory(12), top_k=None)
    runner = LayerRunner(backend, layer)
    _, outputs = runner.run(text, STREAM.seq)
    for b, got in enumerate(came_out(outputs)):
        want = np.nonzero(text.valid[b])[0].tolist()
        assert sorted(got) == want, f"row {b}: out came the places {got}, expected all of {want}"
        places = np.concatenate([out.position[b][out.valid[b]] for out in outputs])
        restored = [got[n] for n in np.argsort(places, kind="stable")]
        assert restored == want, f"row {b}: sorted by position {restored}, expected {want}"
    assert_belongings(outputs, text, "scored queue")


# -- what changes nothing ------------------------------------------------------------------------


@law(0.15)
@given(data=st.data())
def test_chunk_length_changes_nothing_without_eviction(backend: Any, data: st.DataObject) -> None:
    """While nothing is evicted, a flushed layer gives the same whatever the chunk length.

    SPEC, laws: chunking changes nothing.
    """
    text = data.draw(texts(STREAM, exact=False), label="text")
    causal = data.draw(st.sampled_from(few(backend, (True, False))), label="causal")
    queue = None if causal else at.DataOnlyMemory(12)
    layer = at.AttendreLayer(
        at.KeyValueMemory(13, at.LFA()), queue, causal=causal, encoding=at.LMInfinite(4)
    )
    runner = LayerRunner(backend, layer)
    want = by_index(runner.run(text, STREAM.seq)[1], STREAM.length)
    seq = data.draw(st.sampled_from(few(backend, (2, 1, 5, 12, 20))), label="S")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", at.ChunkTooLongWarning)
        outputs = runner.run(text, seq)[1]
    assert_in_order(outputs, text, f"S={seq}")
    got = by_index(outputs, STREAM.length)
    comparing.assert_close(got, want, f"S={seq} against S={STREAM.seq}: output")


@law(0.15)
@given(data=st.data())
def test_chunk_length_does_not_change_what_fifo_keeps(backend: Any, data: st.DataObject) -> None:
    """First in, first out (and sinks) keeps the same positions whatever the chunk length and N.

    SPEC, laws: chunking changes nothing for FIFO, always.
    """
    sinks = data.draw(st.sampled_from(few(backend, (2, 0))), label="sinks")
    size = data.draw(st.sampled_from(few(backend, (2, 4))), label="N")
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
    seq = data.draw(st.sampled_from(few(backend, (2, 1, 4, 5))), label="S")
    got = kept(to_numpy(backend, runner.read(text, seq)[0].kv))
    assert got == want_state, f"S={seq} keeps {got}, S={STREAM.seq} {want_state}"


@law(0.15)
@given(data=st.data())
def test_padding_changes_nothing(backend: Any, data: st.DataObject) -> None:
    """Padding before, between and after the positions of a chunk, and chunks of it: no change.

    SPEC, row 16 and laws.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), documents=0 if compiles(backend) else 2),
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


@law(0.15)
@given(data=st.data())
def test_rows_do_not_influence_each_other(backend: Any, data: st.DataObject) -> None:
    """A row of a ragged batch gives what it gives alone.

    SPEC, laws: rows of a batch do not influence each other.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), documents=0 if compiles(backend) else 2),
        label="layer, text",
    )
    runner = LayerRunner(backend, layer)
    state, outputs = runner.run(text, STREAM.seq)
    for b in range(STREAM.batch):
        own, alone = runner.run(text.rows([b]), STREAM.seq)
        one, two = kept(to_numpy(backend, state.kv))[b], kept(to_numpy(backend, own.kv))[0]
        assert one == two, f"{name}, row {b}: keeps {one}, alone {two}"
        comparing.assert_close(
            by_index(outputs, STREAM.length)[b],
            by_index(alone, STREAM.length)[0],
            f"{name}, row {b} against the row alone: output",
        )


@law(0.15)
@given(data=st.data())
def test_permuting_rows_permutes_results(backend: Any, data: st.DataObject) -> None:
    """Rows in another order give the same results in that order.

    SPEC, laws.
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


@law(0.15)
@given(data=st.data())
def test_input_state_is_unchanged_and_donating_changes_nothing(
    backend: Any, data: st.DataObject
) -> None:
    """A step leaves the state it was given alone; donated, it gives the same results.

    SPEC, laws.
    """
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    runner = LayerRunner(backend, layer)
    state, gift = runner.init(text, STREAM.seq), runner.init(text, STREAM.seq)
    for number, chunk in enumerate(text.chunks(STREAM.seq)):
        before = to_numpy(backend, state)
        after, out = runner.step(state, chunk)
        assert_trees_same(to_numpy(backend, state), before, f"{name}, step {number}: input state")
        if not runner.compiled:
            gift, given_up = layer.step(
                gift,
                from_numpy(backend, chunk),
                encoding_params=runner.table(STREAM.heads),
                donate=True,
            )
            assert_trees_same(
                to_numpy(backend, given_up), out, f"{name}, step {number}: output, donated"
            )
        state = after


@law(0.15)
@given(data=st.data())
def test_state_carried_to_numpy_and_back(backend: Any, data: st.DataObject) -> None:
    """A state taken to NumPy and back in mid-stream goes on as if it had never stopped.

    SPEC, laws: save, restore and go on = never stopped, bit for bit.
    """
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend), documents=0 if compiles(backend) else 2),
        label="layer, text",
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
        assert_trees_same(got, want, f"{name}, step {number}")
    assert_trees_same(to_numpy(backend, other), to_numpy(backend, state), f"{name}: last state")


# -- documents -----------------------------------------------------------------------------------


@law(0.15)
@given(data=st.data())
def test_documents_are_read_as_if_each_were_alone(backend: Any, data: st.DataObject) -> None:
    """While nothing is evicted, attention within documents equals reading each document alone.

    Issue, build 7. For schemes in which distance alone counts.
    """
    choices = (at.RoPE(), at.NoPosition(), at.LMInfinite(2), at.ALiBi(), at.InCache())
    encoding = data.draw(st.sampled_from(few(backend, choices)), label="encoding")
    causal = data.draw(st.sampled_from(few(backend, (False, True))), label="causal")
    text = data.draw(texts(STREAM, exact=False, documents=3), label="text")
    queue = None if causal else at.DataOnlyMemory(12)
    layer = at.AttendreLayer(at.KeyValueMemory(13), queue, causal=causal, encoding=encoding)
    runner = LayerRunner(backend, layer)
    _, outputs = runner.run(text, STREAM.seq)
    got = by_index(outputs, STREAM.length)
    comparing.assert_close(got, everything(layer, text), f"{encoding}: output, documents by id")
    for number in range(3):
        own = text.valid & (text.document == number)
        first = np.min(np.where(own, text.position, 10**6), axis=1, keepdims=True)
        alone = text.but(
            valid=own,
            document=np.zeros_like(text.position),
            position=np.where(own, text.position - first, 0).astype(np.int32),
        )
        want = by_index(runner.run(alone, STREAM.seq)[1], STREAM.length)
        flags = own[..., None, None]
        comparing.assert_close(
            np.where(flags, got, 0), np.where(flags, want, 0), f"{encoding}: document {number}"
        )


@law(0.15)
@given(data=st.data())
def test_reset_row_is_a_fresh_row(backend: Any, data: st.DataObject) -> None:
    """A row reset at a boundary goes on as a fresh row, the others as if nothing had happened.

    Issue, build 7.
    """
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


@law(0.15)
@given(data=st.data())
def test_positions_count_on_from_what_was_read(backend: Any, data: st.DataObject) -> None:
    """Without positions a row counts its own valid entries, from 0, across chunks.

    SPEC, row 18: positions are stored, never derived from lengths; padding does not count.
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


@law(0.15)
@given(data=st.data())
def test_reorder_takes_rows_with_all_that_waits(backend: Any, data: st.DataObject) -> None:
    """Reordered, row i is what row index[i] was: memory and waiting queries.

    Issue, build 1; beam search.
    """
    name, layer, text = data.draw(layer_and_text(layers_for(backend)), label="layer, text")
    index = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)), label="index")
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


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "delay"), [(4, 4), (3, 5), (1, 1)])
def test_n_must_be_smaller_than_m(size: int, delay: int) -> None:
    """N >= M is refused with M, N, the reason, and what to use instead.

    SPEC, row 26.
    """
    with pytest.raises(at.ConfigError) as caught:
        at.AttendreLayer(at.KeyValueMemory(size), at.DataOnlyMemory(delay))
    message = str(caught.value)
    for part in (f"N = {delay}", f"M = {size}", "N < M", "evicted", "half of M"):
        assert part in message, f"the message does not say {part!r}: {message}"
    use = message.partition("Use N = ")[2]
    suggested = int("".join(c for c in use.split(",")[0] if c.isdigit()) or -1)
    if size > 1:
        at.AttendreLayer(at.KeyValueMemory(size), at.DataOnlyMemory(suggested))


def test_top_k_must_fit() -> None:
    """K > M is refused with both numbers.

    SPEC, row 17.
    """
    with pytest.raises(at.ConfigError, match=r"top_k is 7.* 5 slots") as caught:
        at.AttendreLayer(at.KeyValueMemory(5), top_k=7)
    assert "top_k=None" in str(caught.value), f"no advice in: {caught.value}"


def test_state_of_another_layer(backend: Any) -> None:
    """A state of a layer with another M or N, with or without a queue, is refused by name.

    House style: where, what was wrong, what was expected.
    """
    text = seeded_text(STREAM, 0)
    layer = at.AttendreLayer(at.KeyValueMemory(6), at.DataOnlyMemory(2))
    others = {
        "another M": at.AttendreLayer(at.KeyValueMemory(7), at.DataOnlyMemory(2)),
        "another N": at.AttendreLayer(at.KeyValueMemory(6), at.DataOnlyMemory(3)),
        "no queue": at.AttendreLayer(at.KeyValueMemory(6)),
    }
    chunk = from_numpy(backend, text.chunks(STREAM.seq)[0])
    for what, other in others.items():
        state = LayerRunner(backend, other).init(text, STREAM.seq)
        with pytest.raises(at.StateError) as caught:
            layer.step(state, chunk)
        assert "state" in str(caught.value), f"{what}: {caught.value}"
        with pytest.raises(at.StateError) as caught:
            layer.flush(state)
        assert "state" in str(caught.value), f"{what}: {caught.value}"
    with pytest.raises(at.StateError, match="LayerState"):
        layer.step(LayerRunner(backend, layer).init(text, STREAM.seq).kv, chunk)


def test_chunk_longer_than_the_memory_warns_and_works(backend: Any) -> None:
    """S > M warns with the numbers, does not crash, and refuses as many as it says.

    Issue: a clear explanation of what will be refused, not a crash.
    """
    text, seq = seeded_text(STREAM, 3), 6
    layer = at.AttendreLayer(at.KeyValueMemory(4, at.LFA()), at.DataOnlyMemory(2), trace=True)
    runner = LayerRunner(backend, layer)
    state = runner.init(text, seq)
    first, second = text.chunks(seq)
    with pytest.warns(at.ChunkTooLongWarning) as caught:
        state, out = runner.step(state, first)
    message = str(caught[0].message)
    for part in ("6 positions", "holds 4", "at least 2", "at most 4"):
        assert part in message, f"the warning does not say {part!r}: {message}"
    for chunk in (first, second):
        if chunk is second:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", at.ChunkTooLongWarning)
                state, out = runner.step(state, second)
        offered = chunk.position.tolist()
        for b in range(STREAM.batch):
            refused = set(out.trace.evicted[b].tolist()) & set(offered[b])
            assert len(refused) >= 2, f"row {b}: refused {sorted(refused)}, said at least 2"
        assert np.isfinite(out.value).all(), "outputs are not finite"
        held = to_numpy(backend, state.kv).valid.sum(axis=1).tolist()
        assert set(held) == {4}, f"holds {held}, M is 4"


def test_chunk_that_fits_does_not_warn(backend: Any) -> None:
    """S = M is fine, and in visible mode any S is: the own chunk is attended to in its step.

    Issue: the warning is about entries that are refused.
    """
    text = seeded_text(STREAM, 3)
    layer = at.AttendreLayer(at.KeyValueMemory(4, at.LFA()), at.DataOnlyMemory(2))
    visible = replace(layer, kv_memory=at.KeyValueMemory(4, present="visible"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for spec, seq in few(backend, ((visible, 6), (layer, 4))):
            runner = LayerRunner(backend, spec)
            runner.step(runner.init(text, seq), text.chunks(seq)[0])


def assert_trees_same(got: Any, want: Any, what: str) -> None:
    """Compare nested tuples and dicts of arrays bit for bit."""
    if isinstance(want, dict):
        for name in want:
            assert_trees_same(got[name], want[name], f"{what}[{name!r}]")
    elif isinstance(want, tuple):
        for number, (a, b) in enumerate(zip(got, want, strict=True)):
            name = want._fields[number] if hasattr(want, "_fields") else number
            assert_trees_same(a, b, f"{what}.{name}")
    else:
        comparing.assert_same(got, want, what)
