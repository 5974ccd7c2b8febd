"""Encoder-output memory and cross-attention, held against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.layer.cases import LAYERS
from attendre_conformance.layer.running import LayerRunner
from attendre_conformance.layer.texts import STREAM, seeded_text, texts
from attendre_conformance.memory.streams import dyadic, padded
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import softmax
from attendre_conformance.running import compiles, few, from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

BATCH, SEQ, WIDTH = options.rows, 3, 4

_compiled: dict[Any, Any] = {}


def insert(
    backend: Any,
    memory: Any,
    state: Any,
    output: Any,
    position: Any,
    valid: Any = None,
    score: Any = None,
) -> Any:
    """Insert NumPy arrays: (state, evicted), compiled where eager code is slow."""
    key = (backend.name, memory)
    if key not in _compiled:

        def run(state: Any, output: Any, position: Any, valid: Any, score: Any) -> Any:
            return memory.insert(state, output, position, valid, score=score)

        _compiled[key] = backend.compile(run) if compiles(backend) else run
    return _compiled[key](state, *from_numpy(backend, (output, position, valid, score)))


def across(backend: Any, arrays: Any, top_k: int | None, scale: float | None = None) -> Any:
    """Cross-attention of NumPy arrays, compiled where eager code is slow."""
    key = (backend.name, "across", top_k, scale)
    if key not in _compiled:

        def run(query: Any, key: Any, value: Any, valid: Any) -> Any:
            return at.cross_attention(query, key, value, valid, top_k=top_k, scale=scale)

        _compiled[key] = backend.compile(run) if compiles(backend) else run
    return np.asarray(backend.to_numpy(_compiled[key](*from_numpy(backend, arrays))))


def brute_force(arrays: Any, top_k: int | None, scale: float | None = None) -> Any:
    """Cross-attention query by query: the best valid slots, of equals the later one."""
    query, key, value, valid = arrays
    batch, count, heads, dim = query.shape
    share = heads // key.shape[2]
    factor = dim**-0.5 if scale is None else scale
    result = np.zeros((batch, count, heads, value.shape[3]))
    for b, i, h in np.ndindex(batch, count, heads):
        g = h // share
        logits = {
            j: factor * float(query[b, i, h].astype(np.float64) @ key[b, j, g].astype(np.float64))
            for j in range(key.shape[1])
            if valid[b, j]
        }
        best = sorted(logits, key=lambda j: (logits[j], j), reverse=True)[:top_k]
        if best:
            for weight, j in zip(softmax([logits[j] for j in best]), best, strict=True):
                result[b, i, h] += weight * value[b, j, g]
    return result


@st.composite
def readings(draw: st.DrawFn) -> tuple[Any, ...]:
    """Draw query (B, 3, 4, 4), key (B, 6, 2, 4), value (B, 6, 2, 3), valid (B, 6), dyadic."""
    shapes = ((BATCH, 3, 4, 4), (BATCH, 6, 2, 4), (BATCH, 6, 2, 3))
    levels = draw(st.sampled_from((17, 3, 1)), label="levels of the numbers")
    total = sum(int(np.prod(shape)) for shape in shapes)
    raw = draw(st.binary(min_size=total, max_size=total), label="contents")
    flags = draw(st.binary(min_size=6 * BATCH, max_size=6 * BATCH), label="flags")
    percent = draw(st.sampled_from((0, 30, 80)), label="percent of padding")
    parts, used = [], 0
    for shape in shapes:
        size = int(np.prod(shape))
        parts.append(dyadic(raw[used : used + size], levels).reshape(shape))
        used += size
    parts[2][..., 0] = np.arange(6)[:, None] / 8  # slots can be told apart
    return (*parts, padded(flags, percent).reshape(BATCH, 6))


@law()
@given(arrays=readings())
def test_cross_attention_reads_everything_valid(backend: Any, arrays: Any) -> None:
    """Cross-attention equals brute force over all valid slots; zeros where there are none.

    Specification, reading 29: all of it, without position bias.
    """
    got = across(backend, arrays, None)
    comparing.assert_close(got, brute_force(arrays, None), "output (batch, query, head, dim)")


@law()
@given(data=st.data())
def test_top_k_cross_attention_reads_the_best_valid(backend: Any, data: st.DataObject) -> None:
    """With top_k, each query and head reads its K best valid slots alone, of equals the later.

    Specification, reading 29: top-K cross-attention.
    """
    arrays = data.draw(readings(), label="arrays")
    top_k = data.draw(st.sampled_from(few(backend, (2, 9, 1, 5, 6), 3)), label="K")
    got = across(backend, arrays, top_k)
    want = brute_force(arrays, top_k)
    comparing.assert_close(got, want, f"K={top_k}: output (batch, query, head, dim)")


@law()
@given(arrays=readings(), choice=st.sampled_from(((2, 1.0), (None, 0.25))))
def test_scale_multiplies_the_logits(backend: Any, arrays: Any, choice: Any) -> None:
    """A given scale takes the place of 1/sqrt(head_dim).

    Specification, reading 29; T5 uses 1.
    """
    top_k, scale = choice
    got = across(backend, arrays, top_k, scale)
    want = brute_force(arrays, top_k, scale)
    comparing.assert_close(got, want, f"K={top_k}, scale {scale}: output")


@law()
@given(data=st.data())
def test_memory_holds_the_last_outputs_in_order(backend: Any, data: st.DataObject) -> None:
    """The last O valid outputs of each row, oldest first; what went is handed back.

    Specification, reading 29: data-only, FIFO, size O.
    """
    size = data.draw(st.sampled_from(few(backend, (4, 1, 7), 3)), label="O")
    steps = data.draw(st.integers(1, 4), label="steps")
    percent = data.draw(st.sampled_from((0, 40)), label="percent of padding")
    count = steps * BATCH * SEQ
    flags = padded(data.draw(st.binary(min_size=count, max_size=count), label="flags"), percent)
    flags = flags.reshape(steps, BATCH, SEQ)
    memory = at.EncoderOutputMemory(size)
    state = memory.init(BATCH, WIDTH, backend.xp, backend.xp.float32)
    lists: list[list[int]] = [[] for _ in range(BATCH)]
    gone: list[list[int]] = [[] for _ in range(BATCH)]
    for step in range(steps):
        number = np.arange(SEQ) + step * SEQ
        output = np.zeros((BATCH, SEQ, WIDTH), dtype=np.float32)
        output[...] = number[:, None] + np.arange(BATCH)[:, None, None] * 100 + np.arange(WIDTH) / 8
        position = np.tile(number, (BATCH, 1)).astype(np.int32)
        state, evicted = insert(backend, memory, state, output, position, flags[step])
        out, held = to_numpy(backend, evicted), to_numpy(backend, memory.read(state))
        for b in range(BATCH):
            lists[b] += number[flags[step, b]].tolist()
            gone[b] += out.position[b][out.valid[b]].tolist()
            want = lists[b][-size:]
            got = held.position[b][held.valid[b]].tolist()
            assert got == want, f"O={size}, step {step}, row {b}: holds {got}, expected {want}"
            vectors = held.data[b][held.valid[b]]
            expected = np.asarray(want)[:, None] + b * 100 + np.arange(WIDTH) / 8
            comparing.assert_same(
                vectors, expected.astype(np.float32).reshape(-1, WIDTH), f"row {b}: vectors"
            )
            went = lists[b][: max(0, len(lists[b]) - size)]
            assert gone[b] == went, f"O={size}, step {step}, row {b}: went {gone[b]}, not {went}"


@law()
@given(data=st.data())
def test_scores_are_borrowed_from_the_last_layer(backend: Any, data: st.DataObject) -> None:
    """Outputs take the scores that their positions have in the encoder's last K/V memory.

    Specification, reading 29 (footnote). A position that is gone there keeps the score it had; a
    new output whose position is gone gets the lowest; with these scores the best O stay.
    """
    layer = LAYERS["lfa-top-k-t5"]
    text = data.draw(texts(STREAM), label="text")
    runner = LayerRunner(backend, layer)
    state, _ = runner.run(text, STREAM.seq)
    encoder = to_numpy(backend, state.kv)
    memory = at.EncoderOutputMemory(4, at.LFA(initial=at.ConstantScore(0.0)))
    place = text.position[:, :6]
    output = np.zeros((STREAM.batch, 6, WIDTH), dtype=np.float32)
    score = np.asarray(
        backend.to_numpy(memory.scores(state.kv, backend.from_numpy(np.array(place))))
    )
    held = memory.init(STREAM.batch, WIDTH, backend.xp, backend.xp.float32)
    held, _ = insert(backend, memory, held, output, place, text.valid[:, :6], score)
    before = to_numpy(backend, held)
    after = to_numpy(backend, memory.borrow(held, state.kv))
    for b in range(STREAM.batch):
        known = {
            int(p): float(s)
            for p, s, ok in zip(
                encoder.position[b], encoder.score[b], encoder.valid[b], strict=True
            )
            if ok
        }
        lowest = min(known.values(), default=0.0)
        entries = []
        for t in range(6):
            if not text.valid[b, t]:
                continue
            want = known.get(int(place[b, t]), lowest)
            assert float(score[b, t]) == want, (
                f"row {b}, position {place[b, t]}: score {score[b, t]}, expected {want} of {known}"
            )
            entries.append((want, t))
        best = sorted(int(place[b, t]) for _, t in sorted(entries)[-4:])
        got = sorted(before.position[b][before.valid[b]].tolist())
        assert got == best, f"row {b}: holds {got}, the best by (score, recency) are {best}"
        for n in np.nonzero(before.valid[b])[0]:
            want = known.get(int(before.position[b, n]), float(before.score[b, n]))
            assert float(after.score[b, n]) == want, (
                f"row {b}, position {before.position[b, n]}: borrowed {after.score[b, n]}, "
                f"expected {want}"
            )


def test_borrowed_scores_decide_who_stays(backend: Any) -> None:
    """After borrowing, the output whose position the encoder cares least about goes first.

    Specification, reading 29 (footnote).
    """
    layer = at.AttendreLayer(at.KeyValueMemory(6, at.LRA("sum")))
    text = seeded_text(STREAM, 4)
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq)[:2]:
        state, _ = runner.step(state, chunk)
    memory = at.EncoderOutputMemory(6, at.LFA(initial=at.ConstantScore(0.0)))
    held = memory.init(STREAM.batch, WIDTH, backend.xp, backend.xp.float32)
    output = np.zeros((STREAM.batch, 6, WIDTH), dtype=np.float32)
    held, _ = insert(backend, memory, held, output, text.position[:, :6])
    held = memory.borrow(held, state.kv)
    top = np.full((STREAM.batch, 2), 1e6, dtype=np.float32)
    _, gone = insert(backend, memory, held, output[:, :2], text.position[:, 6:8], score=top)
    out, encoder = to_numpy(backend, gone), to_numpy(backend, state.kv)
    for b in range(STREAM.batch):
        columns = (encoder.score[b], encoder.arrival[b], encoder.position[b])
        order = sorted(zip(*(column.tolist() for column in columns), strict=True))
        want = sorted(p for _, _, p in order[:2])
        got = sorted(out.position[b][out.valid[b]].tolist())
        assert got == want, f"row {b}: went {got}, the lowest borrowed scores are at {want}"


def test_mistakes_are_named(backend: Any) -> None:
    """Heads that do not divide, scores per head and an empty top K are refused with the numbers."""
    ones = backend.from_numpy(np.ones((1, 2, 3, 4), dtype=np.float32))
    two = backend.from_numpy(np.ones((1, 2, 2, 4), dtype=np.float32))
    valid = backend.from_numpy(np.ones((1, 2), dtype=bool))
    with pytest.raises(at.ShapeError, match=r"3 heads.*multiple of 2"):
        at.cross_attention(ones, two, two, valid)
    with pytest.raises(at.ConfigError, match="top_k is 0"):
        at.cross_attention(two, two, two, valid, top_k=0)
    kv = at.KeyValueMemory(3, per_head=True).init(batch=1, heads=2, head_dim=4, xp=backend.xp)
    memory = at.EncoderOutputMemory(4)
    with pytest.raises(at.ShapeError, match="per_head=False"):
        memory.borrow(memory.init(1, 4, backend.xp, backend.xp.float32), kv)
    with pytest.raises(at.ConfigError, match="size"):
        at.EncoderOutputMemory(0)
