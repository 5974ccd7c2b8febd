"""Layers with small memories, held against the paper in plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from attendre_conformance import comparing
from attendre_conformance.layer.cases import FAMILIES, LAYERS, layer_and_text, layers_for
from attendre_conformance.layer.running import LayerRunner, oracle_layers, oracle_queries
from attendre_conformance.layer.texts import STREAM, Text, seeded_text, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.running import few, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


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
@law()
@given(data=st.data())
def test_layer_equals_oracle(backend: Any, family: str, data: st.DataObject) -> None:
    """With a small M: the memory keeps, and every query gets, what the oracle's layer says.

    Specification, readings 1-27: the step's order (evict, then attend), delay, scores under every
    scheme.
    """
    name = data.draw(st.sampled_from(few(backend, FAMILIES[family], 3)), label="layer")
    text = data.draw(texts(STREAM, scored=name == "lra-scored-queue"), label="text")
    done = compare(backend, name, LAYERS[name], text)
    event("compared to the end" if done else "cut short by a near-tie")


@law()
@given(data=st.data())
def test_layer_with_documents_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """With a small M and document ids: pairs across documents are neither attended nor scored.

    Specification, readings 8, 9, 18.
    """
    names = ("lfa-top-k-t5", "lru-causal", "lfu-recent-pin", "per-head-lra-in-cache", "fifo")
    name, layer, text = data.draw(
        layer_and_text(layers_for(backend, names), documents=4), label="layer, text"
    )
    done = compare(backend, name, layer, text)
    event("compared to the end" if done else "cut short by a near-tie")


def test_eager_layer_equals_oracle(backend: Any) -> None:
    """The same without any compiling, on every backend.

    Specification, law-same-choices.
    """
    for seed in range(3):
        text = seeded_text(STREAM, seed, percent=25)
        name = "lfa-top-k-t5"
        compare(backend, name, LAYERS[name], text, compiled=False)
