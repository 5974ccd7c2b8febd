"""Laws of chunking: where the paper says that chunks, or the memory itself, make no difference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.memory.cases import case
from attendre_conformance.memory.running import Runner, kept
from attendre_conformance.memory.streams import EQUAL, Chunk, Shape, Stream, scattered, streams
from attendre_conformance.options import law

pytestmark = pytest.mark.attendre_profile("laws")

#: A memory larger than everything the streams of this module hold (4 chunks of 3).
LARGE = Shape("large", options.rows, 3, 12, 2, 4, 4, None)
SMALL = Shape("small", options.rows, 3, 4, 1, 2, 4, None)


def flattened(stream: Stream) -> Chunk:
    """Return the whole stream as one chunk."""
    first = stream.chunks[0]
    fields: dict[str, Any] = {}
    for name in first.__dataclass_fields__:
        parts = [getattr(chunk, name) for chunk in stream.chunks]
        fields[name] = None if parts[0] is None else np.concatenate(parts, axis=1)
    return Chunk(**fields)


def rechunked(draw: st.DataObject, stream: Stream) -> tuple[Stream, list[tuple[int, int]]]:
    """Cut the same sequence elsewhere: pieces of 1 to S, filled up with padding to S."""
    whole = flattened(stream)
    total, seq = whole.valid.shape[1], stream.shape.seq
    chunks, cuts, start = [], [], 0
    while start < total:
        length = draw.draw(st.integers(1, min(seq, total - start)), label=f"piece at {start}")
        fields: dict[str, Any] = {}
        for name in whole.__dataclass_fields__:
            array = getattr(whole, name)
            fields[name] = None if array is None else array[:, start : start + length]
        places = np.tile(np.arange(length), (stream.shape.batch, 1))
        chunks.append(scattered(Chunk(**fields), places, seq))
        cuts.append((start, length))
        start += length
    return Stream(stream.shape, tuple(chunks), stream.exact), cuts


def joined(outputs: list[Any], cuts: list[tuple[int, int]]) -> Any:
    """Join the outputs of a rechunked stream, without its padding."""
    parts = [out[:, :length] for out, (_, length) in zip(outputs, cuts, strict=True)]
    return np.concatenate(parts, axis=1)


def attention(whole: Chunk, causal: bool) -> Any:
    """Full attention over a whole sequence in float64, without any memory."""
    query, key = whole.query.astype(np.float64), whole.key.astype(np.float64)
    value = whole.value.astype(np.float64)
    group = query.shape[2] // key.shape[2]
    output = np.zeros(query.shape[:3] + value.shape[3:])
    for b, i, h in np.ndindex(*query.shape[:3]):
        allowed = whole.valid[b] & whole.query_valid[b, i]
        if causal:
            allowed = allowed & (whole.position[b] <= whole.query_position[b, i])
        if not allowed.any():
            continue
        logits = key[b, allowed, h // group] @ query[b, i, h] / np.sqrt(query.shape[3])
        weight = np.exp(logits - logits.max())
        output[b, i, h] = (weight / weight.sum()) @ value[b, allowed, h // group]
    return output


FIFO_CASES = [
    case("fifo-chunks", SMALL, at.FIFO(), causal=True),
    case("sink-chunks", SMALL, at.AttentionSink(2), causal=True),
]


@law()
@given(data=st.data())
def test_chunking_changes_nothing_for_fifo(backend: Any, data: st.DataObject) -> None:
    """FIFO and sinks keep and evict the same entries however the stream is cut.

    Specification, law-chunking: FIFO always.
    """
    one = data.draw(st.sampled_from(FIFO_CASES), label="case")
    stream = data.draw(streams(SMALL, max_steps=3, query_mode="own"), label="stream")
    other, _ = rechunked(data, stream)
    runner = Runner.of(backend, one)
    state, evicted, _ = runner.run(stream)
    state2, evicted2, _ = runner.run(other)
    assert kept(state2) == kept(state), (
        f"{one.name}: kept {kept(state2)} after cutting elsewhere, {kept(state)} before"
    )
    for b in range(SMALL.batch):
        out, out2 = (
            [p for part in parts for p in part.position[b][part.valid[b]].tolist()]
            for parts in (evicted, evicted2)
        )
        assert sorted(out) == sorted(out2), (
            f"{one.name}, row {b}: evicted {sorted(out2)} after cutting elsewhere, "
            f"{sorted(out)} before"
        )


ZERO = at.ConstantScore(0.0)
LFA_CASES = [
    case("lfa-chunks", LARGE, at.LFA(0.0625, ZERO), causal=True),
    case("lfa-softmax-chunks", LARGE, at.LFA(0.25, ZERO, score="softmax"), causal=True),
]


@law()
@given(data=st.data())
def test_chunking_changes_nothing_for_lfa_without_eviction(
    backend: Any, data: st.DataObject
) -> None:
    """LFA's scores do not depend on the cuts while nothing is evicted and newcomers start at 0.

    Specification, law-chunking: LFA while nothing is evicted; reading 10.
    """
    one = data.draw(st.sampled_from(LFA_CASES), label="case")
    stream = data.draw(streams(LARGE, max_steps=3, query_mode="own"), label="stream")
    other, cuts = rechunked(data, stream)
    runner = Runner.of(backend, one)
    state, _, outputs = runner.run(stream)
    state2, _, outputs2 = runner.run(other)
    for b in range(LARGE.batch):
        score, score2 = (
            dict(zip(s.position[b][s.valid[b]].tolist(), s.score[b][s.valid[b]], strict=True))
            for s in (state, state2)
        )
        assert sorted(score) == sorted(score2), f"{one.name}, row {b}: something was evicted"
        comparing.assert_close(
            np.asarray([score2[p] for p in sorted(score2)]),
            np.asarray([score[p] for p in sorted(score)]),
            f"{one.name}, row {b}: scores by position {sorted(score)} after cutting elsewhere",
        )
    comparing.assert_close(
        joined(outputs2, cuts), np.concatenate(outputs, axis=1), f"{one.name}: outputs"
    )


INDEPENDENT = [
    case("independent", EQUAL, at.FIFO()),
    case("independent-gqa", Shape("one-chunk", options.rows, 3, 3, 2, 4, 4, 3), at.FIFO()),
]


@law()
@given(data=st.data())
def test_memory_of_one_chunk_is_independent_chunks(backend: Any, data: st.DataObject) -> None:
    """MT(M=S, N=0): with full chunks every chunk attends to itself alone.

    Specification, law-independent-chunks; reading 2.
    """
    one = data.draw(st.sampled_from(INDEPENDENT), label="case")
    stream = data.draw(streams(one.shape, padding=False, query_mode="own"), label="stream")
    runner = Runner.of(backend, one)
    _, _, outputs = runner.run(stream)
    for number, (chunk, output) in enumerate(zip(stream.chunks, outputs, strict=True)):
        comparing.assert_close(
            output, attention(chunk, causal=False), f"chunk {number}, against attention within it"
        )


CAUSAL = [
    case("causal-lfa", LARGE, at.LFA(0.0625, ZERO), causal=True),
    case("causal-visible", LARGE, at.LRA("sum"), causal=True, present="visible"),
]


@law()
@given(data=st.data())
def test_large_causal_memory_is_full_causal_attention(backend: Any, data: st.DataObject) -> None:
    """N=0, M >= T, causal: the same as full causal attention over the whole sequence.

    Specification, law-causal; reading 18.
    """
    one = data.draw(st.sampled_from(CAUSAL), label="case")
    exact = data.draw(st.booleans(), label="dyadic numbers")
    stream = data.draw(streams(LARGE, exact=exact, query_mode="own"), label="stream")
    _, _, outputs = Runner.of(backend, one).run(stream)
    want = attention(flattened(stream), causal=True)
    comparing.assert_close(np.concatenate(outputs, axis=1), want, f"{one.name}: outputs")


HOLDING_ALL = [
    at.KeyValueMemory(size=LARGE.size, policy=at.LFA(0.0625, ZERO)),
    at.KeyValueMemory(size=LARGE.size, policy=at.LRU(), present="visible"),
]


@law()
@given(data=st.data())
def test_large_memory_is_full_attention(backend: Any, data: st.DataObject) -> None:
    """M >= T, queries after everything was inserted: the same as full attention.

    Specification, law-bidirectional.
    """
    memory = data.draw(st.sampled_from(HOLDING_ALL), label="memory")
    stream = data.draw(streams(LARGE, exact=False), label="stream")
    runner = Runner(backend, memory)
    state = runner.init(LARGE)
    for chunk in stream.chunks:
        state, _ = runner.insert(state, chunk)
    whole = flattened(stream)
    want = attention(whole, causal=False)
    for number, chunk in enumerate(stream.chunks):
        state, output = runner.attend(state, chunk)
        part = want[:, number * LARGE.seq : (number + 1) * LARGE.seq]
        comparing.assert_close(runner.numpy(output), part, f"{memory.policy}: queries {number}")
