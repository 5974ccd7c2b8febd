"""Laws of the layer with room for everything: full attention, by position and by document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.running import LayerRunner, assert_in_order, by_index, everything
from attendre_conformance.layer.texts import STREAM, WHOLE, texts
from attendre_conformance.options import law
from attendre_conformance.positions.cases import SCHEMES
from attendre_conformance.running import mixtures

pytestmark = pytest.mark.attendre_profile("laws")


@pytest.mark.parametrize("family", SCHEMES)
@law()
@given(data=st.data())
def test_large_layer_is_full_bidirectional_attention(
    backend: Any, family: str, data: st.DataObject
) -> None:
    """M >= T, N >= T, K = all, flushed: every position attends to all, for every position scheme.

    Specification, law-bidirectional; readings 19-24 and 30-34.
    """
    encoding, seq = data.draw(mixtures(backend, SCHEMES[family], (4, 1, 9)), label="encoding, S")
    text = data.draw(texts(WHOLE, exact=False), label="text")
    layer = at.AttendreLayer(at.KeyValueMemory(12), at.DataOnlyMemory(10), encoding=encoding)
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    where = f"{encoding}, S={seq}"
    assert_in_order(outputs, text, where)
    comparing.assert_close(
        by_index(outputs, WHOLE.length), everything(layer, text), f"{where}: output by position"
    )


@law()
@given(data=st.data())
def test_large_causal_layer_is_full_causal_attention(backend: Any, data: st.DataObject) -> None:
    """N = 0, M >= T, causal: every position attends to all up to itself, for every scheme.

    Specification, law-causal; reading 18.
    """
    every = [SCHEMES[family][n] for n in range(4) for family in SCHEMES if n < len(SCHEMES[family])]
    encoding, seq, per_head = data.draw(
        mixtures(backend, every, (4, 1, 9), (False, True), most=5), label="encoding, S, per head"
    )
    text = data.draw(texts(WHOLE, exact=False), label="text")
    layer = at.AttendreLayer(
        at.KeyValueMemory(12, per_head=per_head), causal=True, encoding=encoding
    )
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    where = f"{encoding}, S={seq}"
    assert_in_order(outputs, text, where)
    comparing.assert_close(
        by_index(outputs, WHOLE.length), everything(layer, text), f"{where}: output by position"
    )


@law()
@given(data=st.data())
def test_memory_of_one_chunk_is_independent_chunks(backend: Any, data: st.DataObject) -> None:
    """M = S, N = 0, FIFO, full chunks: every chunk attends to itself alone.

    Specification, law-independent-chunks; reading 2.
    """
    causal = data.draw(st.booleans(), label="causal")
    text = data.draw(texts(STREAM, exact=False, padding=False), label="text")
    seq = STREAM.seq
    layer = at.AttendreLayer(at.KeyValueMemory(seq), causal=causal)
    _, outputs = LayerRunner(backend, layer).run(text, seq)
    alone = text.but(document=np.tile(np.arange(STREAM.length) // seq, (STREAM.batch, 1)))
    comparing.assert_close(
        by_index(outputs, STREAM.length), everything(layer, alone), "output by position"
    )


@law()
@given(data=st.data())
def test_documents_are_read_as_if_each_were_alone(backend: Any, data: st.DataObject) -> None:
    """While nothing is evicted, attention within documents equals reading each document alone.

    For schemes in which distance alone counts.
    """
    choices = (at.RoPE(), at.NoPosition(), at.LMInfinite(2), at.ALiBi(), at.InCache())
    encoding, causal = data.draw(
        mixtures(backend, choices, (False, True)), label="encoding, causal"
    )
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
