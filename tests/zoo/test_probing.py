"""Streams that are asked: probes, attention by document, fewer encoder outputs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.oracle.positions import SchemeRule, rotation
from attendre_core.evaluation import load_tiny
from attendre_core.memory import cross_attention
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.saving import read_arrays, write_arrays

FILE = Path(__file__).parents[2] / "docs" / "examples" / "probes.py"
LIBRARIES = ("numpy", "torch", "jax")
LARGE = at.MemoryConfig(at.FIFO(), 128, chunk=8, positions="model")


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("probes_example", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)  # dataclasses look their module up
        spec.loader.exec_module(module)
        yield module


def tokens(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(1, 60, count).tolist()


def joined(rows: Iterable[list[int]]) -> list[int]:
    return [token for row in rows for token in row]


def causal_model(memory: Any, library: str = "numpy") -> at.Model:
    pytest.importorskip(library)
    model = load_tiny("prefix-lm", backend=library)
    return at.Model(
        model.architecture, model.params, memory=memory, library=library, attention="causal"
    )


def dense_weights(model: at.Model, row: list[int]) -> list[np.ndarray]:
    """Return the weights of full causal attention of each layer, (heads, length, length)."""
    part, params = model.reading_part, model.reading_params
    at_ = np.arange(len(row), dtype=np.int32)[None]
    x = part.embed(params, np.asarray([row], dtype=np.int32), at_)
    found = []
    for number, layer in enumerate(params["layers"]):
        rope = part.encoding(number)
        rule = SchemeRule("rope", base=rope.base)
        query, key, value = part.project(layer, x, at_)
        turn = np.stack([rotation(rule, part.head_dim, t) for t in range(len(row))])
        query, key = (np.einsum("tij,thj->thi", turn, y[0]) for y in (query, key))
        key, value = (np.repeat(y, part.heads // part.kv_heads, axis=1) for y in (key, value[0]))
        logits = np.einsum("ihd,jhd->hij", query, key) * part.head_dim**-0.5
        logits = np.where(np.tri(len(row), dtype=bool), logits, -np.inf)
        weights = np.exp(logits - logits.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        found.append(weights)
        attended = np.einsum("hij,jhd->ihd", weights, value)[None].astype(np.float32)
        x = part.finish(layer, attended, x)
    return found


def scores(stream: at.Stream, count: int) -> list[np.ndarray]:
    """Return the scores of each layer by position, (count,) or (kv_heads, count)."""
    found = []
    for state in stream._states:
        position, score, valid = (
            np.asarray(stream.model.backend.to_numpy(x))[0]
            for x in (state.kv.position, state.kv.score, state.kv.valid)
        )
        by_head = [a.reshape(-1, a.shape[-1]) for a in (position, score, valid)]
        row = np.full((len(by_head[0]), count), np.nan)
        for head, (p, s, v) in enumerate(zip(*by_head, strict=True)):
            row[head, p[v]] = s[v]
        found.append(row[0] if position.ndim == 1 else row)
    return found


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_probe_hears_what_the_model_would_say(library: str) -> None:
    """Hidden states are those of reading; the stream is where it was, and goes on alike."""
    context, question, more = tokens(21), tokens(5, 1), tokens(9, 2)
    model = causal_model(LARGE, library)
    one, two = model.stream(), model.stream()
    for stream in (one, two):
        stream.feed(context)
    hidden = one.probe(question)
    assert one.lengths == (21,)
    assert np.asarray(model.backend.to_numpy(hidden.position)).tolist() == [[21, 22, 23, 24, 25]]
    want = np.asarray(model.backend.to_numpy(model.encode([*context, *question])))[:, 21:]
    got = np.asarray(model.backend.to_numpy(hidden.x))
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    for stream in (one, two):
        stream.feed(more)
    logits = [np.asarray(model.backend.to_numpy(s.next_logits())) for s in (one, two)]
    np.testing.assert_allclose(*logits, rtol=1e-5, atol=1e-5)
    assert one.generate(4) == two.generate(4)


def test_rows_ask_different_questions_of_different_lengths() -> None:
    model = causal_model(LARGE)
    rows, asked = [tokens(12), tokens(5, 1)], [tokens(3, 2), tokens(7, 3)]
    stream = model.stream(2)
    stream.feed(rows)
    hidden = stream.probe(asked)
    for number in range(2):
        alone = model.stream()
        alone.feed(rows[number])
        count = len(asked[number])
        np.testing.assert_allclose(
            hidden.x[number, :count], alone.probe(asked[number]).x[0], rtol=1e-5, atol=1e-5
        )
        assert hidden.valid[number].sum() == count
    same = stream.probe(asked[0])  # one question for all rows
    np.testing.assert_allclose(same.x[0], hidden.x[0, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_kvzip_scores_by_the_largest_weight_of_a_replay(library: str, example) -> None:
    """Per block, as EpiCache replays: the maximum over its queries, all replays and grouped heads.

    The weights are those of full attention over context, prompt and block, computed apart.
    """
    prompt, blocks = tokens(3, 9), [tokens(8, 1), tokens(8, 2)]
    memory = replace(example.memory(64, 8), positions="model", sinks=0)
    model = causal_model(memory, library)
    stream = model.stream()
    example.kvzip(stream, blocks, prompt)
    plain, part = causal_model(None), model.reading_part
    want = [np.zeros((part.kv_heads, 16)) for _ in range(part.layers)]
    for number in (1, 2):
        read = joined(blocks[:number])
        for layer, weights in enumerate(
            dense_weights(plain, [*read, *prompt, *blocks[number - 1]])
        ):
            largest = weights[:, len(read) :, : len(read)].max(axis=1)
            grouped = largest.reshape(part.kv_heads, -1, len(read)).max(axis=1)
            seen = want[layer][:, : len(read)]
            np.maximum(seen, grouped, out=seen)
    for got, expected in zip(scores(stream, 16), want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_finch_keeps_what_the_question_attends_to(library: str, example) -> None:
    """After each block every head keeps its best by the question's weights, as a loop would."""
    question, blocks, size = tokens(4, 9), [tokens(8, n) for n in range(4)], 12
    memory = replace(example.memory(size, 8), positions="model", sinks=0)
    model = causal_model(memory, library)
    stream = model.stream()
    kept: list[list[list[int]]] = []
    example.finch(stream, blocks[:2], question)
    plain, part = causal_model(None), model.reading_part
    weights = dense_weights(plain, [*blocks[0], *blocks[1], *question])
    for layer in weights:
        total = layer[:, 16:, :16].sum(axis=1).reshape(part.kv_heads, -1, 16).sum(axis=1)
        kept.append([sorted(np.argsort(-row)[:size].tolist()) for row in total])
    stream.feed(blocks[2])
    for state, wanted in zip(stream._states, kept, strict=True):
        position, valid = (
            np.asarray(model.backend.to_numpy(x))[0] for x in (state.kv.position, state.kv.valid)
        )
        for head, places in enumerate(wanted):
            held = sorted(p for p in position[head][valid[head]].tolist() if p < 16)
            assert held == places


def test_a_memory_holds_its_policy_unless_a_probe_brings_one(example) -> None:
    memory = replace(example.memory(32, 8), positions="model")
    stream = causal_model(memory).stream()
    stream.feed(tokens(16))
    assert all((row == 0).all() for row in scores(stream, 16))
    stream.probe(tokens(3))  # the memory's own policy does not observe
    assert all((row == 0).all() for row in scores(stream, 16))
    stream.probe(tokens(3), policy=at.LRA("max", score="softmax"))
    assert all((row > 0).all() for row in scores(stream, 16))


@pytest.mark.parametrize("library", LIBRARIES)
def test_attention_by_document_is_the_sum_of_its_weights(library: str) -> None:
    documents, question = [tokens(7, 1), tokens(5, 2), tokens(6, 3)], tokens(4, 9)
    model = causal_model(LARGE, library)
    stream = model.stream()
    for name, document in zip("abc", documents, strict=True):
        stream.feed(document, document=name)
    stream.probe(question)
    before = scores(stream, 18)
    shares = stream.attention_by("document")
    weights = np.stack(dense_weights(causal_model(None), [*joined(documents), *question]))
    mean = weights[:, :, 18:].mean(axis=(0, 1, 2))
    want = {"a": mean[:7].sum(), "b": mean[7:12].sum(), "c": mean[12:18].sum()}
    assert shares == pytest.approx(want, rel=1e-3)
    assert list(shares) == sorted(want, key=want.get)
    for one, two in zip(before, scores(stream, 18), strict=True):
        np.testing.assert_array_equal(one, two)


def test_labels_are_saved_and_hostile_ones_refused(tmp_path: Path) -> None:
    model = causal_model(LARGE)
    stream = model.stream()
    stream.feed(tokens(9), document="a", speaker=1)
    stream.feed(tokens(4), document="b")
    file = tmp_path / "stream.safetensors"
    stream.save(file)
    restored = model.restore(file)
    question = tokens(3, 9)
    for kind in ("document", "speaker"):
        assert restored.attention_by(kind, question) == stream.attention_by(kind, question)
    assert stream.copy().attention_by("document", question).keys() == {"a", "b"}
    with pytest.raises(at.ConfigError, match="nothing was fed with a 'chapter'"):
        stream.attention_by("chapter", question)
    with pytest.raises(at.ConfigError, match="nothing was asked yet"):
        stream.attention_by("document")
    with pytest.raises(at.ConfigError, match="one for each row"):
        stream.feed([1], document=["a", "b"])
    saved = read_arrays(file)
    for labels in (
        [], {"document": [[["a", 0, 99]]]}, {"document": [[["a", 3, 2]]]}, {"document": [[["a"]]]},
        {"document": [[[["a"], 0, 2]]]}, {"document": []}, {"document": [[["a", 0.0, 2]]]},
    ):  # fmt: skip
        hostile = tmp_path / "hostile.safetensors"
        write_arrays(hostile, stream._arrays, np.asarray, {**saved.notes, "labels": labels})
        with pytest.raises(at.StateError, match="labels"):
            model.restore(hostile)


def test_attention_sorting_reads_the_most_attended_last(example) -> None:
    documents, question = [tokens(8, n) for n in range(4)], tokens(4, 9)
    model = causal_model(LARGE)
    stream, order = example.attention_sorting(model, documents, question, rounds=1)
    mean = np.stack(dense_weights(causal_model(None), [*joined(documents), *question]))
    mean = mean[:, :, 32:, :32].mean(axis=(0, 1, 2)).reshape(4, 8).sum(axis=1)
    assert order == np.argsort(mean).tolist()
    want = model.stream()
    want.feed(joined(documents[n] for n in order))
    np.testing.assert_allclose(stream.next_logits(), want.next_logits(), rtol=1e-5, atol=1e-5)


class TestEncoderOutputs:
    rows = ([1, 60, 61, 4, 2, 70, 30, 12, 71, 72, 33, 13, 3], [1, 60, 5, 2, 31, 13, 3])

    def stream(self, library: str) -> at.Stream:
        pytest.importorskip(library)
        stream = load_tiny("encoder-decoder", "MT:64", backend=library).stream(2)
        stream.feed(self.rows)
        return stream

    def test_weights_on_request(self) -> None:
        rng = np.random.default_rng(0)
        query, key, value = (rng.standard_normal((1, n, 4, 3)) for n in (2, 5, 5))
        key, value = key[:, :, :2], value[:, :, :2]
        valid = np.asarray([[True, True, False, True, True]])
        for top_k in (None, 2):
            plain = cross_attention(query, key, value, valid, top_k=top_k)
            output, weights = cross_attention(query, key, value, valid, top_k=top_k, weights=True)
            assert weights.shape == (1, 2, 4, 5)
            np.testing.assert_allclose(output, plain, atol=1e-12)
            np.testing.assert_allclose(weights.sum(-1), 1)
            assert (weights[..., 2] == 0).all()
            assert ((weights > 0).sum(-1) == (top_k or 4)).all()
            mixed = np.einsum("bqhs,bshd->bqhd", weights, np.repeat(value, 2, axis=2))
            np.testing.assert_allclose(output, mixed, atol=1e-12)

    @pytest.mark.thorough("jax")
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_the_share_that_is_attended_to_most_stays(self, library: str) -> None:
        """The next token's logits are those of a decoder that reads only the best outputs."""
        stream = self.stream(library)
        model = stream.model
        part, params = model.writing_part, model.params["decoder"]
        writer, first = stream.writer(4)
        stream.keep_encoder_outputs(0.5)
        pruned, same = stream.writer(4)
        numpy = model.backend.to_numpy
        np.testing.assert_array_equal(numpy(first), numpy(same))
        # The start token's cross-attention in the last layer, by the decoder's own steps.
        encoded, valid = stream.encoded()
        start = model.array(np.full((2, 1), model.architecture.start, dtype=np.int32))
        place = model.array(np.zeros((2, 1), dtype=np.int32))
        x = part.embed(params, start, place)
        for number, layer in enumerate(params["layers"]):
            key, across = part.cross_project(layer, encoded)
            own = part.project(layer, x, place)[2]  # one token attends to itself alone
            if number == part.layers - 1:
                query = part.cross_query(layer, own, x)
                _, weights = cross_attention(
                    query, key, across, valid, scale=part.scale, weights=True
                )
            x = part.finish(layer, own, x, (key, across, valid))
        mean = np.asarray(numpy(weights))[:, 0].mean(axis=1)
        held = np.asarray(numpy(valid))
        for row in range(2):
            count = -(-held[row].sum() // 2)
            best = np.argsort(-np.where(held[row], mean[row], -1))[:count]
            kept = np.asarray(numpy(pruned.blocks[0].cross[2]))[row]
            assert kept.sum() == count
            want = np.asarray(numpy(writer.blocks[0].cross[0]))[row][np.sort(best)]
            np.testing.assert_array_equal(
                np.asarray(numpy(pruned.blocks[0].cross[0]))[row][kept], want
            )
        following = pruned.write([5, 6], np.ones(2, bool))
        assert following.shape == first.shape
        assert not np.allclose(following, writer.write([5, 6], np.ones(2, bool)))

    def test_all_of_them_is_no_change_and_few_lose_little(self) -> None:
        stream = self.stream("numpy")
        every = stream.generate(3)
        stream.keep_encoder_outputs(1.0)
        assert stream.generate(3) == every
        with pytest.raises(at.ConfigError, match="share is 0"):
            stream.keep_encoder_outputs(0)
        with pytest.raises(at.ConfigError, match="after is 0"):
            stream.keep_encoder_outputs(0.5, after=0)
        stream.keep_encoder_outputs(0.5, layer=9)
        with pytest.raises(at.ConfigError, match="layer is 9"):
            stream.generate(3)
        with pytest.raises(at.ConfigError, match="only an encoder-decoder"):
            causal_model(LARGE).stream().keep_encoder_outputs(0.5)

    def test_beams_keep_their_own(self) -> None:
        stream = self.stream("numpy")
        stream.keep_encoder_outputs(0.5)
        assert len(stream.generate(3, beams=2)) == 2


def test_log_likelihood_from_a_probe_is_that_of_the_model() -> None:
    """What a probe returns is enough to ask how likely a text is, without reading it."""
    model = causal_model(LARGE)
    context, text = tokens(12), tokens(6, 4)
    stream = model.stream()
    stream.feed(context)
    logits = model.architecture.logits(model.params, stream.probe(text).x)
    got = log_softmax(np.asarray(logits[0, :-1], dtype=np.float64))[np.arange(5), text[1:]]
    whole = np.asarray(model.with_memory(None).logits([*context, *text]), dtype=np.float64)
    want = log_softmax(whole[0, 12:-1])[np.arange(5), text[1:]]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
