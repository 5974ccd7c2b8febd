"""The trace: what was inserted and evicted, when and why, held against an independent replay."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import LAYERS
from attendre_conformance.layer.running import LayerRunner, oracle_layers, oracle_queries
from attendre_conformance.layer.texts import STREAM, Text, seeded_text, texts
from attendre_conformance.options import law
from attendre_conformance.oracle.layer import Gone
from attendre_conformance.running import few, from_numpy, to_numpy
from attendre_conformance.stack.running import StackRunner, inputs, plain_block
from attendre_core.layer import REASONS

pytestmark = pytest.mark.attendre_profile("laws")

#: Every policy once, with and without protection, by token and by head.
TRACED = {
    name: replace(LAYERS[name], trace=True)
    for name in (
        "lfa-top-k-t5",
        "visible-lra-alibi",
        "sink-lm-infinite",
        "per-head-lra-in-cache",
        "lfu-recent-pin",
        "lru-causal",
        "fifo",
    )
}


def replay(layer: Any, text: Text) -> tuple[list[list[list[list[Gone]]]], float]:
    """Return what went, ``[row][step][group]``, from the oracle, and its closest decision."""
    oracles = oracle_layers(layer, text)
    found = []
    for b, oracle in enumerate(oracles):
        found.append(
            [
                oracle.step(oracle_queries(chunk, b), chunk.key[b], chunk.value[b]).evicted
                for chunk in text.chunks(STREAM.seq)
            ]
        )
    return found, min(oracle.gap for oracle in oracles)


def traced(backend: Any, layer: Any, text: Text) -> Any:
    """Run a text and collect its trace."""
    runner = LayerRunner(backend, layer)
    state, trace = runner.init(text, STREAM.seq), at.Trace()
    for chunk in text.chunks(STREAM.seq):
        state, out = runner.step(state, chunk)
        trace.add(out.trace)
    return trace


def draw_trace(backend: Any, data: st.DataObject) -> tuple[str, Any, Text, Any, Any]:
    """Draw a layer and a text, and run both sides."""
    name = data.draw(st.sampled_from(few(backend, list(TRACED), 3)), label="layer")
    text = data.draw(texts(STREAM), label="text")
    want, gap = replay(TRACED[name], text)
    assume(gap >= comparing.NEAR)
    return name, TRACED[name], text, want, traced(backend, TRACED[name], text)


@law()
@given(data=st.data())
def test_when_evicted_agrees_with_a_replay(backend: Any, data: st.DataObject) -> None:
    """`when_evicted` names step and reason as a replay does, for all policies."""
    name, layer, text, want, trace = draw_trace(backend, data)
    per_head = layer.kv_memory.per_head
    for b in range(STREAM.batch):
        for position in text.position[b][text.valid[b]].tolist():
            got = [
                (e.step, e.head, e.reason == "refused") for e in trace.when_evicted(position, row=b)
            ]
            expected = [
                (step, g if per_head else None, gone.refused)
                for step, groups in enumerate(want[b])
                for g, entries in enumerate(groups)
                for gone in entries
                if gone.position == position
            ]
            assert sorted(got, key=str) == sorted(expected, key=str), (
                f"{name}, row {b}, position {position}: the trace says (step, head, refused) "
                f"{got}, the replay {expected}"
            )
            if not per_head:
                assert len(got) <= 1, f"{name}: position {position} went {len(got)} times"


@law()
@given(data=st.data())
def test_reason_and_threshold_say_why(backend: Any, data: st.DataObject) -> None:
    """An entry went as the oldest, or below the threshold, or tied with it; never above it.

    The threshold is the lowest score among what stayed and could have gone.
    """
    name, layer, _, want, trace = draw_trace(backend, data)
    in_order = isinstance(layer.kv_memory.policy, at.FIFO | at.AttentionSink)
    for b in range(STREAM.batch):
        for e in trace.evictions(row=b):
            groups = want[b][e.step]
            (gone,) = [x for x in groups[e.head or 0] if x.position == e.position]
            where = f"{name}, row {b}: {e}"
            comparing.assert_close(e.score, gone.score, f"{where}: score")
            if gone.threshold is not None:
                comparing.assert_close(e.threshold, gone.threshold, f"{where}: threshold")
                assert e.score <= e.threshold + 1e-5, f"{where}: worth more than what stayed"
            if gone.refused:
                assert e.reason == "refused", f"{where}: the replay says it was refused"
            elif in_order:
                assert e.reason == "oldest", f"{where}: the policy goes by arrival alone"
            elif gone.threshold is not None:
                tied = e.score == e.threshold
                assert e.reason == ("tie, older" if tied else "lower score"), (
                    f"{where}: score {e.score}, threshold {e.threshold}"
                )
            assert f"step {e.step}" in str(e), f"does not say when: {e}"
            assert f"position {e.position}" in str(e), f"does not say what: {e}"


@law()
@given(data=st.data())
def test_survival_covers_every_position_once(backend: Any, data: st.DataObject) -> None:
    """Survival has every inserted position once: the step it came, the step it went or None.

    Specification, law-conservation.
    """
    name, _, text, want, trace = draw_trace(backend, data)
    for b in range(STREAM.batch):
        life = trace.survival(row=b)
        came = {int(p): t // STREAM.seq for t, p in enumerate(text.position[b]) if text.valid[b, t]}
        got = {p: step for p, (step, _) in life.items()}
        assert got == came, f"{name}, row {b}: inserted {got}, expected {came}"
        heads = [
            {gone.position: step for step, groups in enumerate(want[b]) for gone in groups[g]}
            for g in range(len(want[b][0]))
        ]
        # Gone is what no head holds any more: since the last of them let it go.
        everywhere = set.intersection(*(set(head) for head in heads))
        went = {p: max(head[p] for head in heads) for p in everywhere}
        got = {p: step for p, (_, step) in life.items() if step is not None}
        assert got == went, f"{name}, row {b}: went {got}, expected {went}"


def numbered(trace: Any) -> list[tuple[Any, ...]]:
    """List every eviction of all layers and rows."""
    return [
        (e.layer, e.step, e.row, -1 if e.head is None else e.head, e.position, e.reason)
        for layer, steps in enumerate(trace.steps)
        for row in range(len(steps[0].inserted))
        for e in trace.evictions(layer, row)
    ]


@law()
@given(data=st.data())
def test_columns_are_consistent(backend: Any, data: st.DataObject) -> None:
    """`to_arrays` has one row per eviction, in columns of one length, equal to the list of them."""
    _, _, _, want, trace = draw_trace(backend, data)
    columns = trace.to_arrays()
    assert set(columns) == {
        "layer", "step", "row", "head", "position", "reason", "score", "threshold"
    }, f"columns {sorted(columns)}"  # fmt: skip
    assert len({len(column) for column in columns.values()}) == 1, (
        f"lengths { {name: len(column) for name, column in columns.items()} }"
    )
    names = ("layer", "step", "row", "head", "position", "reason")
    rows = list(zip(*(columns[name].tolist() for name in names), strict=True))
    assert rows == numbered(trace), f"columns {rows}, evictions {numbered(trace)}"
    total = sum(len(entries) for row in want for groups in row for entries in groups)
    assert len(rows) == total, f"{len(rows)} evictions, the replay has {total}"
    assert set(columns["reason"].tolist()) <= set(REASONS[1:]), f"{set(columns['reason'])}"


def test_traces_of_a_stack(backend: Any) -> None:
    """A stack hands out a trace for each layer that traces; the layers are told apart."""
    layers = (
        at.AttendreLayer(at.KeyValueMemory(4), at.DataOnlyMemory(2), trace=True),
        at.AttendreLayer(at.KeyValueMemory(6), at.DataOnlyMemory(1), trace=True),
    )
    blocks = [plain_block("pre", n) for n in range(2)]
    runner = StackRunner(backend, at.Stack(layers), blocks)
    trace = at.Trace()
    state, x = runner.init(2, 3), inputs(0, 2, 12)
    valid, index = np.ones((2, 3), dtype=bool), np.arange(12, dtype=np.int32)[None].repeat(2, 0)
    for start in range(0, 12, 3):
        part = slice(start, start + 3)
        state, out = runner.step(state, x[:, part], None, valid, index[:, part])
        for number in range(2):
            trace.add(out.traces[number], layer=number)
    for row in range(2):
        # Layer 0 reads 12 positions into 4 slots; layer 1 reads 2 fewer into 6.
        for layer, read, size in ((0, 12, 4), (1, 10, 6)):
            got = sorted(e.position for e in trace.evictions(layer, row))
            want = list(range(read - size))
            assert got == want, f"layer {layer}, row {row}: went {got}, expected {want}"
    layers_seen = set(trace.to_arrays()["layer"].tolist())
    assert layers_seen == {0, 1}, f"layers in the columns: {layers_seen}"


@pytest.mark.attendre_profile("transforms")
def test_trace_from_compiled_steps(backend: Any) -> None:
    """Compiled steps give the trace that eager steps give."""
    layer, text = TRACED["lfa-top-k-t5"], seeded_text(STREAM, 5, percent=25)
    eager = LayerRunner(backend, layer, compiled=False)
    fast = LayerRunner(backend, layer, compiled=True)
    state, quick = eager.init(text, STREAM.seq), fast.init(text, STREAM.seq)
    traces = at.Trace(), at.Trace()
    for chunk in text.chunks(STREAM.seq):
        state, want = eager.step(state, chunk)
        quick, got = fast.step(quick, chunk)
        traces[0].add(want.trace)
        traces[1].add(got.trace)
        comparing.assert_close(got.value, want.value, "output, compiled against eager")
    eager_list, compiled_list = numbered(traces[0]), numbered(traces[1])
    assert eager_list, "nothing was evicted"
    assert sorted(compiled_list) == sorted(eager_list), (
        f"compiled {compiled_list}, eager {eager_list}"
    )


def test_parquet_holds_the_columns(backend: Any, tmp_path: Path) -> None:
    """`to_parquet` writes the columns of to_arrays."""
    parquet = pytest.importorskip("pyarrow.parquet")
    trace = traced(backend, TRACED["fifo"], seeded_text(STREAM, 1))
    path = tmp_path / "trace.parquet"
    trace.to_parquet(str(path))
    table = parquet.read_table(path)
    for name, column in trace.to_arrays().items():
        got = table.column(name).to_pylist()
        assert got == column.tolist(), f"{name}: read {got}, wrote {column.tolist()}"


def test_trace_says_what_is_missing() -> None:
    """A step without a trace is refused with the remedy."""
    with pytest.raises(at.ConfigError, match="trace=True"):
        at.Trace().add(None)


def test_padding_is_no_position(backend: Any) -> None:
    """Padding is neither inserted nor evicted, also when it brings numbers along.

    Specification, reading 16.
    """
    layer, text = TRACED["fifo"], seeded_text(STREAM, 2, percent=60)
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq):
        state, out = runner.function("step")(state, from_numpy(backend, chunk), None)
        step = to_numpy(backend, out.trace)
        assert (step.inserted[~chunk.valid] == -1).all(), f"inserted {step.inserted.tolist()}"
        assert step.inserted[chunk.valid].tolist() == chunk.position[chunk.valid].tolist()
        assert ((step.reason > 0) == (step.evicted >= 0)).all(), (
            f"reasons {step.reason.tolist()} for {step.evicted.tolist()}"
        )
