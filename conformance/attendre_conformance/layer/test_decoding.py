"""From prefix to decoding: one token at a time against what was kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import LAYERS, layers_for
from attendre_conformance.layer.running import LayerRunner, oracle_layers, oracle_queries
from attendre_conformance.layer.texts import STREAM, Text, seeded_text, texts
from attendre_conformance.memory.running import kept
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import Pair, full_attention, pair_logit
from attendre_conformance.positions.cases import scheme_rule, table_for
from attendre_conformance.running import few, to_numpy
from attendre_conformance.stack.running import HEADS, StackRunner, collected, inputs, plain_block

pytestmark = pytest.mark.attendre_profile("laws")

#: The first chunks are the prefix, the rest is generated one by one.
PREFIX = 6


def parts(text: Text) -> tuple[Text, Text]:
    """Cut a text into prefix and generated."""
    first = {name: a[:, :PREFIX] for name, a in text.arrays.items()}
    rest = {name: a[:, PREFIX:] for name, a in text.arrays.items()}
    return text.but(**first), text.but(**rest)


def read_prefix(runner: LayerRunner, text: Text, drain: int | None = None) -> Any:
    """Read the prefix and flush (or drain) it: the state decoding starts from."""
    return runner.run(parts(text)[0], STREAM.seq, drain)[0]


def held(text: Text, row: int, positions: list[int]) -> list[int]:
    """Find the places of the text that have these positions."""
    return [
        t
        for t in range(text.valid.shape[1])
        if text.valid[row, t] and int(text.position[row, t]) in positions
    ]


@law()
@given(data=st.data())
def test_decoding_is_full_causal_attention_without_eviction(
    backend: Any, data: st.DataObject
) -> None:
    """Each generated token attends to the whole prefix and to what was generated before it.

    Specification, reading 28: Q memory off, the prefix memory stays, a separate decode cache.
    """
    choices = (
        at.RoPE(), at.LMInfinite(3), at.T5Bias(8, 16), at.InCache(), at.ALiBi(),
        at.TransformerXLPositions(4),
    )  # fmt: skip
    encoding = data.draw(st.sampled_from(few(backend, choices)), label="encoding")
    present = data.draw(st.sampled_from(few(backend, ("compete", "visible"))), label="present")
    room = data.draw(st.sampled_from(few(backend, (6, None, 9))), label="room")
    text = data.draw(texts(STREAM, exact=False), label="text")
    size = 12 if room is None else PREFIX
    layer = at.AttendreLayer(
        at.KeyValueMemory(size, at.LFA(), present=present), at.DataOnlyMemory(4), encoding=encoding
    )
    runner = LayerRunner(backend, layer)
    drained = data.draw(st.sampled_from(few(backend, (None, 2))), label="drained at a time")
    state = read_prefix(runner, text, drained)
    decoder, state = layer.decoding(state, room)
    assert (decoder.delay, decoder.causal) == (0, True), f"decoding with {decoder}"
    runner = LayerRunner(backend, decoder)
    want = np.stack(
        [
            full_attention(
                text.query[b], text.key[b], text.value[b], text.position[b], text.valid[b],
                rule=scheme_rule(encoding), causal=True,
                table=table_for(encoding, STREAM.heads, STREAM.head_dim),
            )
            for b in range(STREAM.batch)
        ]
    )  # fmt: skip
    for number, chunk in enumerate(parts(text)[1].chunks(1)):
        state, out = runner.step(state, chunk)
        where = f"{encoding}, {present}, room={room}, token {number}"
        comparing.assert_same(out.valid, chunk.valid, f"{where}: valid")
        comparing.assert_close(
            out.value, want[:, PREFIX + number : PREFIX + number + 1], f"{where}: output"
        )


def rounding_decides(text: Text, row: int, places: list[int], layer: Any) -> list[bool]:
    """Tell for each head whether the top K of the last of these places hangs on rounding.

    Logits of dyadic numbers are exact, and so are their ties. A rotated key is rounded: where the
    K-th and the next logit are closer than `comparing.NEAR`, either may rightly be retrieved. A
    query of zeros has logits of zero in any scheme.
    """
    rule, table = (
        scheme_rule(layer.encoding),
        table_for(layer.encoding, STREAM.heads, STREAM.head_dim),
    )
    last, k = places[-1], layer.top_k
    if k is None or len(places) <= k or (text.exact and rule.exact):
        return [False] * STREAM.heads
    found = []
    for head in range(STREAM.heads):
        query, own = text.query[row, last, head], head // (STREAM.heads // STREAM.kv_heads)
        at_, logits = int(text.position[row, last]), []
        for j in places:
            vectors = query.astype(np.float64), text.key[row, j, own].astype(np.float64)
            pair = Pair(*vectors, at_, int(text.position[row, j]), head, STREAM.heads)
            logits.append(pair_logit(rule, pair, STREAM.head_dim**-0.5, table))
        logits.sort(reverse=True)
        gap = (logits[k - 1] - logits[k]) / max(1.0, abs(logits[k]))
        found.append(bool(np.any(query)) and gap < comparing.NEAR)
    return found


@pytest.mark.parametrize("present", ["compete", "visible"])
@law()
@given(data=st.data())
def test_prefix_is_never_evicted(backend: Any, present: str, data: st.DataObject) -> None:
    """With room, all that was read stays; the last ``room`` generated tokens are held beside it.

    Specification, reading 28. Each token attends to exactly what is held, itself included.
    """
    # Heads that evict on their own hold different prefixes; a scored queue needs scores.
    whole = [name for name in LAYERS if not LAYERS[name].kv_memory.per_head]
    names = [name for name in whole if LAYERS[name].kv_memory.present == present]
    names = [name for name in names if name != "lra-scored-queue"]
    name = data.draw(st.sampled_from(layers_for(backend, names)), label="layer")
    room = data.draw(st.sampled_from(few(backend, (2, 1, 5))), label="room")
    text = data.draw(texts(STREAM), label="text")
    layer = LAYERS[name]
    runner = LayerRunner(backend, layer)
    state = read_prefix(runner, text)
    settled, _ = layer.kv_memory.settle(state.kv)
    prefix = kept(to_numpy(backend, settled))
    decoder, state = layer.decoding(state, room)
    runner = LayerRunner(backend, decoder)
    rule, table = (
        scheme_rule(layer.encoding),
        table_for(layer.encoding, STREAM.heads, STREAM.head_dim),
    )
    generated: list[list[int]] = [[] for _ in range(STREAM.batch)]
    for number, chunk in enumerate(parts(text)[1].chunks(1)):
        state, out = runner.step(state, chunk)
        now = kept(to_numpy(backend, state.kv))
        for b in range(STREAM.batch):
            where = f"{name}, room={room}, token {number}, row {b}"
            if chunk.valid[b, 0]:
                generated[b].append(int(chunk.position[b, 0]))
            lost = set(prefix[b]) - set(now[b])
            assert not lost, f"{where}: lost {sorted(lost)} of the prefix {prefix[b]}"
            recent = generated[b][-room:]
            assert set(recent) <= set(now[b]), f"{where}: holds {now[b]}, not all of {recent}"
            others = sorted(set(now[b]) - set(prefix[b]))
            assert others == generated[b][len(generated[b]) - len(others) :], (
                f"{where}: holds {others}, which are not the last generated {generated[b]}"
            )
            if not chunk.valid[b, 0]:
                assert not out.valid[b, 0], f"{where}: padding came out as valid"
                continue
            places = held(text, b, now[b])
            want = full_attention(
                text.query[b, places], text.key[b, places], text.value[b, places],
                text.position[b, places], np.ones(len(places), dtype=bool),
                rule=rule, causal=True, table=table, top_k=layer.top_k,
            )  # fmt: skip
            for head, unclear in enumerate(rounding_decides(text, b, places, layer)):
                if unclear:
                    event("a head left out: rounding decides its top K")
                    continue
                comparing.assert_close(
                    out.value[b, 0, head], want[-1, head], f"{where}, head {head}: output"
                )


@law()
@given(data=st.data())
def test_decoding_inside_the_memory_equals_oracle(backend: Any, data: st.DataObject) -> None:
    """Without room, generated tokens compete inside M, which is never exceeded.

    Specification, reading 28: into the M budget as an option.
    """
    names = [name for name in LAYERS if name != "lra-scored-queue"]
    name = data.draw(st.sampled_from(layers_for(backend, names)), label="layer")
    text = data.draw(texts(STREAM), label="text")
    layer, size = LAYERS[name], LAYERS[name].kv_memory.size
    runner, oracles = LayerRunner(backend, layer), oracle_layers(layer, text)
    first, rest = parts(text)
    for chunk in first.chunks(STREAM.seq):
        for b, oracle in enumerate(oracles):
            oracle.step(oracle_queries(chunk, b), chunk.key[b], chunk.value[b])
    for oracle in oracles:
        oracle.flush()
        oracle.queue = None
        oracle.rule = replace(oracle.rule, queue=None, causal=True)
    decoder, state = layer.decoding(read_prefix(runner, text))
    runner = LayerRunner(backend, decoder)
    for number, chunk in enumerate(rest.chunks(1)):
        where = f"{name}, token {number}"
        state, out = runner.step(state, chunk)
        expected = np.zeros(out.value.shape)
        for b, oracle in enumerate(oracles):
            step = oracle.step(oracle_queries(chunk, b), chunk.key[b], chunk.value[b])
            if step.answers[0] is not None and len(step.answers[0].heads[0]):
                expected[b, 0] = np.stack(step.answers[0].heads)
        if min(oracle.gap for oracle in oracles) < comparing.NEAR:
            event("cut short by a near-tie")
            return
        now = to_numpy(backend, state.kv)
        got, want = kept(now), [oracle.kept() for oracle in oracles]
        if not layer.kv_memory.per_head:
            want = [row[0] for row in want]  # type: ignore[misc]
        assert got == want, f"{where}: keeps {got}, the oracle {want}"
        if layer.kv_memory.present == "compete":
            most = int(now.valid.sum(axis=-1).max())
            assert most <= size, f"{where}: holds {most} entries, M is {size}"
        comparing.assert_close(out.value, expected, f"{where}: output")


@law()
@given(data=st.data())
def test_stack_decodes_as_a_prefix_model(backend: Any, data: st.DataObject) -> None:
    """A stack that read a prefix both ways decodes as a full transformer with a prefix mask.

    Specification, readings 22-25 and 28: prefix positions see the prefix, generated ones all before
    them.
    """
    room = data.draw(st.sampled_from(few(backend, (8, None))), label="room")
    finish = data.draw(st.sampled_from(few(backend, (None, 3))), label="drained at a time")
    x = inputs(data.draw(st.integers(0, 999), label="seed"), 2, 10)
    ends = data.draw(st.tuples(st.integers(6, 10), st.integers(6, 10)), label="ends of rows")
    valid = np.arange(10) < np.asarray(ends)[:, None]
    layers = tuple(
        at.AttendreLayer(at.KeyValueMemory(14, at.LFA()), at.DataOnlyMemory(n), encoding=e)
        for n, e in few(backend, ((6, at.RoPE()), (7, at.ALiBi())))
    )
    blocks = [plain_block("pre", 1), plain_block("parallel", 2)][: len(layers)]
    runner = StackRunner(backend, at.Stack(layers), blocks)
    state = runner.init(2, 3)
    index = np.tile(np.arange(10, dtype=np.int32), (2, 1))
    outs = []
    for start in (0, 3):
        part = (slice(None), slice(start, start + 3))
        state, out = runner.step(state, x[part], index[part], valid[part], index[part])
        outs.append(out)
    state, rest = runner.finish(state, finish)
    stack, state = runner.stack.decoding(state, room)
    decoder = StackRunner(backend, stack, blocks)
    for t in range(6, 10):
        part = (slice(None), slice(t, t + 1))
        state, out = decoder.step(state, x[part], index[part], valid[part], index[part])
        outs.append(out)
    got, _ = collected(outs + rest, 2, 10)
    for b in range(2):
        y = x[b].astype(np.float64)
        for block, layer in zip(blocks, layers, strict=True):
            q, k, v = (
                np.stack(part) for part in zip(*(block.project(row) for row in y), strict=True)
            )
            rule, early = scheme_rule(layer.encoding), np.arange(10) < 6
            prefix = full_attention(q, k, v, index[b], valid[b] & early, rule=rule)
            later = full_attention(q, k, v, index[b], valid[b], rule=rule, causal=True)
            mixed = np.where(early[:, None, None], prefix, later)
            assert mixed.shape[1] == HEADS, f"{mixed.shape}"
            y = np.stack([block.finish(mixed[t], y[t]) for t in range(10)])
        want = np.where(valid[b][:, None], y, 0)
        comparing.assert_close(got[b], want, f"room={room}, row {b}: output", scale=5)


def test_waiting_queries_are_dropped_and_the_state_stays(backend: Any) -> None:
    """Decoding without a flush drops what waits; the state it was given is unchanged.

    Specification, reading 28; law-purity.
    """
    text = seeded_text(STREAM, 0)
    layer = LAYERS["fifo"]
    runner = LayerRunner(backend, layer)
    state = runner.init(text, STREAM.seq)
    for chunk in text.chunks(STREAM.seq)[:2]:
        state, _ = runner.step(state, chunk)
    before = to_numpy(backend, state)
    decoder, decoding = layer.decoding(state, 2)
    assert decoding.queue is None, "the Q memory is still there"
    after = to_numpy(backend, state)
    comparing.assert_same(after.kv[:6], before.kv[:6], "state given to decoding")
    chunk = text.chunks(1)[7]
    LayerRunner(backend, decoder).step(decoding, chunk)


def test_room_must_be_positive(backend: Any) -> None:
    """Room for nothing is refused, with the alternative."""
    layer = LAYERS["fifo"]
    state = LayerRunner(backend, layer).init(seeded_text(STREAM, 0), STREAM.seq)
    with pytest.raises(at.ConfigError, match="room") as caught:
        layer.decoding(state, 0)
    assert "None" in str(caught.value), f"no advice in: {caught.value}"
