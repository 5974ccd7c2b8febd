"""Laws of probes: they attend and score like tokens that are read, and leave nothing behind."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.layer.cases import LAYERS
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import STREAM, Text, seeded_text, texts
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import Pair, full_attention, pair_logit, softmax
from attendre_conformance.positions.cases import scheme_rule, table_for
from attendre_conformance.running import compiles, few, from_numpy, mixtures, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

#: The first positions are read, the rest is the probe.
READ = 6
#: Fields of a memory's state that a probe may change.
CHANGING = ("score", "observed", "policy_state")


@lru_cache(maxsize=64)
def prober(backend: Any, layer: Any, policy: Any) -> Any:
    """Return a probe as a function of arrays alone."""

    def probe(state: Any, chunk: Any, table: Any) -> Any:
        return layer.probe(
            state, chunk.query, chunk.key, chunk.value, chunk.position, chunk.valid,
            encoding_params=table, policy=policy,
        )  # fmt: skip

    return backend.compile(probe) if compiles(backend) else probe


def probed(backend: Any, layer: Any, state: Any, chunk: Any, policy: Any = None) -> Any:
    """Probe with a chunk of NumPy arrays: the state of the backend, the output in NumPy."""
    table = from_numpy(backend, table_for(layer.encoding, *chunk.query.shape[2:]))
    bare = chunk._replace(carry=None, metadata=None, document=None)
    state, output = prober(backend, layer, policy)(state, from_numpy(backend, bare), table)
    return state, to_numpy(backend, output)


def cut(text: Text, part: slice) -> Text:
    """Return a part of a text."""
    return text.but(**{name: array[:, part] for name, array in text.arrays.items()})


def mass(layer: Any, text: Text, row: int) -> dict[int, float]:
    """Weights that the probe's queries give what was read, by position, over queries and heads."""
    rule, heads, dim = scheme_rule(layer.encoding), *text.query.shape[2:]
    table, share = table_for(layer.encoding, heads, dim), heads // text.key.shape[2]
    real = [t for t in range(text.valid.shape[1]) if text.valid[row, t]]
    place = text.position[row].tolist()
    sums = {place[t]: 0.0 for t in real if t < READ}
    for i in (t for t in real if t >= READ):
        seen = [t for t in real if not layer.causal or place[t] <= place[i]]
        for h in range(heads):
            pairs = [
                Pair(
                    text.query[row, i, h].astype(np.float64),
                    text.key[row, t, h // share].astype(np.float64),
                    place[i], place[t], h, heads,
                )
                for t in seen
            ]  # fmt: skip
            logits = [pair_logit(rule, pair, dim**-0.5, table) for pair in pairs]
            for weight, t in zip(softmax(logits), seen, strict=True):
                if t < READ:
                    sums[place[t]] += weight
    return sums


@law()
@given(data=st.data())
def test_a_probe_attends_like_tokens_that_are_read(backend: Any, data: st.DataObject) -> None:
    """Its output is full attention over the memory and itself; its scores are those weights.

    Specification, law-probe.
    """
    choices = (
        at.RoPE(), at.NoPosition(), at.LMInfinite(3), at.T5Bias(8, 16), at.ALiBi(),
        at.TransformerXLPositions(4),
    )  # fmt: skip
    encoding, causal, present = data.draw(
        mixtures(backend, choices, (True, False), ("compete", "visible")),
        label="encoding, causal, present",
    )
    policy = at.LRA("sum", at.ConstantScore(0.0), score="softmax")
    layer = at.AttendreLayer(
        at.KeyValueMemory(8, policy, present=present), causal=causal, encoding=encoding
    )
    text = data.draw(texts(STREAM, exact=False), label="text")
    runner = LayerRunner(backend, layer)
    state, _ = runner.read(cut(text, slice(0, READ)), STREAM.seq)
    (rest,) = cut(text, slice(READ, None)).chunks(STREAM.length - READ)
    state, output = probed(backend, layer, state, rest)
    where = f"{encoding}, causal={causal}, {present}"
    for b in range(STREAM.batch):
        want = full_attention(
            text.query[b], text.key[b], text.value[b], text.position[b], text.valid[b],
            rule=scheme_rule(encoding), causal=causal,
            table=table_for(encoding, STREAM.heads, STREAM.head_dim),
        )  # fmt: skip
        comparing.assert_close(output[b], want[READ:], f"{where}, row {b}: output")
        kv = to_numpy(backend, state.kv)
        if not rest.valid[b].any():
            continue
        sums = mass(layer, text, b)
        for slot in np.nonzero(kv.valid[b])[0]:
            place = int(kv.position[b, slot])
            comparing.assert_close(
                kv.score[b, slot], np.float32(sums[place]), f"{where}, row {b}, position {place}"
            )


@law()
@given(data=st.data())
def test_a_probe_changes_scores_alone(backend: Any, data: st.DataObject) -> None:
    """Entries, positions, clocks and waiting queries are as before, bit by bit.

    Specification, law-probe.
    """
    names = [name for name in LAYERS if "in-cache" not in name]
    name = data.draw(st.sampled_from(few(backend, names, 3)), label="layer")
    layer = LAYERS[name]
    other = data.draw(st.sampled_from(few(backend, (None, at.LRA("max")))), label="policy")
    text = data.draw(texts(STREAM, exact=False, scored="scored" in name), label="text")
    runner = LayerRunner(backend, layer)
    state, _ = runner.read(cut(text, slice(0, READ)), STREAM.seq)
    before = to_numpy(backend, state)
    (rest,) = cut(text, slice(READ, None)).chunks(STREAM.length - READ)
    after = to_numpy(backend, probed(backend, layer, state, rest, other)[0])
    same = dict.fromkeys(CHANGING)
    comparing.assert_same(
        after._replace(kv=after.kv._replace(**same)),
        before._replace(kv=before.kv._replace(**same)),
        f"{name}: what a probe may not change",
    )
    empty = ~before.kv.valid
    comparing.assert_same(
        after.kv.score[empty], before.kv.score[empty], f"{name}: scores of empty slots"
    )


def test_reading_goes_on_as_if_nobody_had_asked(backend: Any) -> None:
    """A memory that does not rank by scores gives the same outputs with probes in between.

    Specification, law-probe.
    """
    layer, text = LAYERS["sink-lm-infinite"], seeded_text(STREAM, 7, percent=25)
    runner = LayerRunner(backend, layer)
    _, want = runner.run(text, STREAM.seq)
    state, outputs = runner.init(text, STREAM.seq), []
    chunks = text.chunks(STREAM.seq)
    for chunk in chunks:
        state, out = runner.step(state, chunk)
        outputs.append(out)
        state, _ = probed(backend, layer, state, chunks[0])
    state, out = runner.finish(state, STREAM.heads)
    got = by_index([*outputs, out], STREAM.length)
    comparing.assert_same(got, by_index(want, STREAM.length), "output by position")


def test_probes_refuse_what_they_cannot_do(backend: Any) -> None:
    """Keys without values, own tokens under in-cache positions, and policies with a state."""
    text = seeded_text(STREAM, 1)
    (chunk,) = from_numpy(backend, tuple(cut(text, slice(0, 3)).chunks(3)))
    for layer, options, match in (
        (LAYERS["fifo"], {"key": chunk.key}, "neither"),
        (
            LAYERS["per-head-lra-in-cache"],
            {"key": chunk.key, "value": chunk.value},
            "count what is stored",
        ),
        (LAYERS["fifo"], {"policy": at.ExpectedAttention()}, "a state of its own"),
    ):
        state = LayerRunner(backend, layer).init(text, STREAM.seq)
        with pytest.raises(at.ConfigError, match=match):
            layer.probe(state, chunk.query, **options)
