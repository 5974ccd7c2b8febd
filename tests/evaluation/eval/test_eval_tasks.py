"""Needles, many keys, streams, embeddings and synthetic documents as tasks."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation import load_tiny, measure, system
from attendre_core.evaluation.tasks import (
    ContextRule,
    Embedding,
    LookAhead,
    MultiKey,
    Needle,
    Perplexity,
    TriviaQA,
)
from attendre_core.evaluation.tasks.multi_key import read_records
from attendre_core.zoo.generate import log_softmax
from attendre_core.zoo.model import Model

WORDS = "The river ran past the town, and the town slept. " * 40


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("LICENCE " + WORDS)
    return str(file)


def scores(task, model, found, batch=4):
    items = task.items(model)
    return [score for some in task.measure(model, items, found, batch) for score in some]


# ---------------------------------------------------------------- needle and keys


def test_a_needle_stands_at_its_depth(decoder):
    needle = Needle(limit=3, rule=ContextRule(tokens=800, depth=0.5))
    items = needle.items(decoder)
    texts = [decoder.text(item.tokens) for item in items]
    for item, prompt in zip(items, texts, strict=True):
        (digits,) = item.aliases
        assert prompt.count(digits) == 1
        assert prompt.index(digits) / len(prompt) == pytest.approx(0.5, abs=0.15)
        assert 780 < len(prompt) < 900
    assert len(set(texts)) == 3
    assert items == needle.items(decoder)


def test_made_up_keys_are_asked_one_by_one(decoder):
    task = MultiKey(limit=3, keys=12, depth=1.0)
    for item in task.items(decoder):
        prompt = decoder.text(item.tokens)
        assert prompt.count("The code of the") == 12
        assert prompt.removesuffix("\n\nAnswer:").endswith(f" {item.aliases[0]}.")
    with pytest.raises(ConfigError, match="keys is 1000"):
        MultiKey(keys=1000)


def test_keys_of_a_file(decoder, tmp_path):
    records = [[f"k{i}", f"v{i}"] for i in range(9)]
    line = {"ordered_kv_records": records, "key": "k8", "value": "v8"}
    file = tmp_path / "records.jsonl.gz"
    file.write_bytes(gzip.compress(json.dumps(line).encode() + b"\n"))
    (item,) = MultiKey(data=str(file), keys=4).items(decoder)
    prompt = decoder.text(item.tokens)
    assert item.aliases == ("v8",)
    assert 'of the key "k8"?' in prompt
    assert "v4" not in prompt
    assert all(f'"k{i}": "v{i}"' in prompt for i in (5, 6, 7, 8))


@pytest.mark.parametrize(
    "raw", [b"no gzip", gzip.compress(b'{"key": "a"}', mtime=0)], ids=["no gzip", "no records"]
)
def test_broken_records_are_refused(tmp_path, raw):
    file = tmp_path / "records.jsonl.gz"
    file.write_bytes(raw)
    with pytest.raises(ConfigError, match="Expected JSON lines with ordered_kv_records"):
        list(read_records(file))


def test_the_records_of_lost_in_the_middle(data):
    found = list(read_records(data("qa/kv-retrieval-75_keys.jsonl.gz")))
    assert len(found) == 500
    assert {len(records) for records, _ in found} == {75}


def test_real_questions_become_prompts(decoder, data):
    file = data("qa/triviaqa_test1000_wiki.jsonl")
    task = TriviaQA(data=str(file), limit=5, rule=ContextRule(tokens=1500))
    items = task.items(decoder)
    prompts = [decoder.text(item.tokens) for item in items]
    assert all(len(prompt) < 1800 and prompt.startswith("Question: ") for prompt in prompts)
    # Whoever marked the third one took "hobgoblin" for "Puck".
    found = [item.aliases[0] in prompt for item, prompt in zip(items, prompts, strict=True)]
    assert found == [True, True, False, True, True]
    assert len(task.identity()["sha256"]) == 64


# ---------------------------------------------------------------- perplexity


def test_without_a_memory_every_chunk_of_a_stream_is_read_for_itself(decoder, text):
    task = Perplexity(data=text, tokens=96, skip=8, piece=32)
    row = list(WORDS.encode()[:96])
    alone = system("no-memory", 64, chunk=32)
    found = dict(scores(task, decoder, alone))
    losses = np.zeros(96)
    for start in (0, 32, 64):
        logits = np.asarray(decoder.logits(row[start : start + 32])[0], dtype=np.float64)
        known = min(32, 95 - start)
        following = row[start + 1 : start + 1 + known]
        losses[start + 1 : start + 1 + known] = -log_softmax(logits[:known])[
            np.arange(known), following
        ]
    for start in (1, 33, 65):
        want = losses[start : start + 32].mean()
        assert found[f"0:{start}"]["loss"] == pytest.approx(want, abs=1e-4)
    full = dict(scores(task, decoder, system("full", 64, chunk=32)))
    assert found["0:65"]["loss"] != pytest.approx(full["0:65"]["loss"], abs=1e-3)
    assert found["0:1"]["bytes"] * 3 == full["0:1"]["bytes"]


def test_a_stream_is_predicted_as_a_whole_text_is(decoder, text):
    task = Perplexity(data=text, tokens=200, streams=2, skip=8, piece=64)
    rows = [WORDS.encode()[:200], WORDS.encode()[200:400]]
    found = dict(scores(task, decoder, system("full", 64, chunk=32)))
    assert len(found) == 8
    for number, row in enumerate(rows):
        logits = np.asarray(decoder.logits(list(row))[0], dtype=np.float64)
        losses = -log_softmax(logits)[np.arange(199), list(row[1:])]
        for start in (1, 65, 129, 193):
            want = losses[start - 1 : start + 63].mean()
            assert found[f"{number}:{start}"]["loss"] == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("q", [0, 20])
def test_a_memory_that_holds_a_stream_changes_nothing(decoder, text, q):
    task = Perplexity(data=text, tokens=200, skip=8)
    full = dict(scores(task, decoder, system("full", 64, chunk=32)))
    held = dict(scores(task, decoder, system("LRA-sum", 256, q, chunk=32)))
    small = dict(scores(task, decoder, system("MT", 32, chunk=32)))
    for name, score in full.items():
        assert held[name]["loss"] == pytest.approx(score["loss"], abs=1e-4)
    assert any(abs(small[name]["loss"] - full[name]["loss"]) > 1e-3 for name in full)


@pytest.mark.parametrize("windows", [(5, 5), (5, None)])
def test_without_a_memory_a_window_ends_with_its_chunk(windows, decoder, text):
    """Windows are exact at every M; only where nothing is remembered, they are cut as well."""
    sliding = Model(
        replace(decoder.architecture, windows=windows), decoder.params, tokenizer=decoder.tokenizer
    )
    task = Perplexity(data=text, tokens=96, skip=8, piece=32)
    full, alone, small = (
        dict(scores(task, sliding, system(name, kv, chunk=32)))
        for name, kv in (("full", 64), ("no-memory", 64), ("first-M", 32))
    )
    row = list(WORDS.encode()[:96])
    logits = np.concatenate([sliding.logits(row[i : i + 32])[0] for i in (0, 32, 64)])
    losses = -log_softmax(logits[:95].astype(np.float64))[np.arange(95), row[1:]]
    for start in (1, 33, 65):
        want = losses[start - 1 : start + 31].mean()
        assert alone[f"0:{start}"]["loss"] == pytest.approx(want, abs=1e-4)
    assert alone["0:65"]["loss"] != pytest.approx(full["0:65"]["loss"], abs=1e-3)
    exact = small["0:65"]["loss"] == pytest.approx(full["0:65"]["loss"], abs=1e-4)
    assert exact == (windows == (5, 5))


def test_diagnostics_are_those_of_the_layers_that_a_memory_governs(decoder, text):
    sliding = Model(
        replace(decoder.architecture, windows=(5, None)), decoder.params,
        tokenizer=decoder.tokenizer,
    )  # fmt: skip
    found = scores(Perplexity(data=text, tokens=96, skip=8), sliding, system("first-M", 16))
    assert {score["admitted"] for _, score in found} == {0.0}
    # The first chunk finds all of its entries, no other chunk finds any.
    assert all(score["present"] == pytest.approx(1 / 6) for _, score in found)


def test_a_text_must_be_long_enough(decoder, text):
    with pytest.raises(ConfigError, match="has .* tokens, expected at least 99999"):
        Perplexity(data=text, tokens=99999).items(decoder)
    with pytest.raises(ConfigError, match="no file"):
        Perplexity(data="nowhere.txt").items(decoder)


# ---------------------------------------------------------------- embeddings


@pytest.fixture(scope="module")
def encoder(decoder):
    """The decoder, reading in both directions."""
    both = decoder.with_memory(None)
    both.attention = "prefix"
    return both


def test_embeddings_come_closer_as_the_memory_grows(encoder, text):
    task = Embedding(data=text, tokens=128, limit=3)

    def cosine(name, kv, q=0):
        found = scores(task, encoder, system(name, kv, q, chunk=16))
        return np.mean([score["cosine"] for _, score in found])

    assert cosine("full", 64) == pytest.approx(1)
    assert cosine("MT", 129, 128) == pytest.approx(1, abs=1e-5)
    assert cosine("no-memory", 64) == pytest.approx(cosine("MT", 16), abs=1e-5)
    assert cosine("no-memory", 64) < 0.999
    kept = {
        name: scores(task, encoder, system(name, 64, chunk=16))[0][1]["bytes"]
        for name in ("full", "no-memory")
    }
    assert kept["full"] == 8 * kept["no-memory"]


def test_pieces_have_the_special_tokens_of_a_text(encoder, text):
    class Marked:
        def encode(self, text):
            return [1, *text.encode(), 2]

        def decode(self, tokens):
            return bytes(tokens[1:-1]).decode()

    marked = encoder.with_memory(None)
    marked.tokenizer = Marked()
    items = Embedding(data=text, tokens=34, limit=3, skip=8).items(marked)
    assert [item.tokens[0] for item in items] == [1, 1, 1]
    assert [item.tokens[-1] for item in items] == [2, 2, 2]
    assert "".join(marked.text(item.tokens) for item in items) == WORDS[:96]
    with pytest.raises(ConfigError, match="no room"):
        Embedding(data=text, tokens=2).items(marked)


def test_embeddings_need_both_directions(decoder, encoder, text):
    with pytest.raises(ConfigError, match="attends only backwards"):
        Embedding(data=text).items(decoder)
    with pytest.raises(ConfigError, match="ends at 2048"):
        Embedding(data=text, tokens=4096).items(encoder)


# ---------------------------------------------------------------- synthetic


def test_the_synthetic_tasks_are_those_of_the_demo():
    model, task = load_tiny("prefix-lm"), LookAhead(limit=6, seed=3)
    found = scores(task, model, system("LFA-0", 32, chunk=16))
    documents = task.items(model)
    outcome = measure(model, documents, system("LFA-0", 32, chunk=16))
    assert [score["right"] for _, score in found] == outcome.right.tolist()
    assert [score["admitted"] for _, score in found] == pytest.approx(outcome.admitted)


def test_other_models_cannot_do_the_synthetic_tasks(decoder):
    with pytest.raises(ConfigError, match="has 256 tokens, that of the task 80"):
        LookAhead().items(decoder)


def test_a_control_is_charged_for_what_it_reads():
    model, task = load_tiny("prefix-lm"), LookAhead(limit=2, seed=3)
    each = 2 * 4 * 64 * 2  # keys and values, float32, width, layers
    for name, tokens in (("no-memory", lambda d: 16), ("closed-book", lambda d: d.closed_book.size),
                         ("full", lambda d: d.tokens.size)):  # fmt: skip
        found = dict(scores(task, model, system(name, 16)))
        for item in task.items(model):
            assert found[item.name]["bytes"] == each * tokens(item), name
