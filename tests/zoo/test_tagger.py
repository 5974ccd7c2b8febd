"""Spans of texts of any length: against transformers, and laws of streams."""

from __future__ import annotations

import gc
import itertools
import json
import tracemalloc
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.zoo.pipelines import Classification, Classifier
from attendre_core.zoo.tagger import Tagger

pytest.importorskip("safetensors")
tokenizers = pytest.importorskip("tokenizers")

REPOSITORY = Path(__file__).resolve().parents[2]
LICENSE = (REPOSITORY / "LICENSE").read_text(encoding="utf-8").splitlines()
SCHEMES = {
    "BIO": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"],
    "BILOU": ["O", "B-PER", "I-PER", "L-PER", "U-PER", "U-LOC", "B-LOC"],
    "plain": ["NOUN", "VERB", "O", "E-mail"],
}


@pytest.fixture(scope="module")
def vocabulary():
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator([*LICENSE, "Zürich naïve 世界 über"], 400, show_progress=False)
    ids = trained.get_vocab()
    return sorted(ids, key=lambda piece: ids[piece])


@pytest.fixture(scope="module")
def folder_of(vocabulary, tmp_path_factory):
    """Save a random BERT for token classification, whose labels follow a scheme."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")

    def make(labels, kind="TokenClassification", **sizes):
        folder = tmp_path_factory.mktemp("bert")
        torch.manual_seed(1)
        config = transformers.BertConfig(
            **{
                "vocab_size": len(vocabulary), "hidden_size": 24, "num_hidden_layers": 2,
                "num_attention_heads": 3, "intermediate_size": 32, "initializer_range": 0.7,
                "id2label": dict(enumerate(labels)), "num_labels": len(labels),
                "label2id": {label: number for number, label in enumerate(labels)}, **sizes,
            }
        )  # fmt: skip
        getattr(transformers, f"BertFor{kind}")(config).eval().save_pretrained(folder)
        (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
        return folder

    return make


@pytest.fixture(scope="module")
def folders(folder_of):
    return {scheme: folder_of(labels) for scheme, labels in SCHEMES.items()}


def same(got, want):
    """Whether spans are equal, but for the rounding of their scores."""
    assert [span[:4] for span in got] == [span[:4] for span in want]
    assert [span.score for span in got] == pytest.approx([s.score for s in want], rel=1e-4)


TEXTS = (
    " ".join(LICENSE)[:700],
    "Zürich, naïve (世界); über-all: don't!  Work\n\nthe copyright 12345\r\nholders ",
    "a", " x ", "Contributor",
)  # fmt: skip


@pytest.mark.parametrize("scheme", ["BIO", "plain"])
@pytest.mark.parametrize("aggregation", ["simple", "first"])
def test_spans_equal_those_of_transformers(folders, scheme, aggregation):
    """Of full attention; for BILOU transformers has no rules."""
    transformers = pytest.importorskip("transformers")
    folder = folders[scheme]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.pipeline(
            "token-classification",
            model=transformers.BertForTokenClassification.from_pretrained(folder),
            tokenizer=transformers.BertTokenizer.from_pretrained(str(folder)),
            aggregation_strategy=aggregation,
        )
        mine = at.pipeline("token-classification", folder, aggregation=aggregation)
        streaming = at.pipeline("ner", folder, memory="attendre:1024", aggregation=aggregation)
        for text in TEXTS:
            want = [(s["entity_group"], s["start"], s["end"]) for s in theirs(text)]
            # It takes what is before a hyphen for a prefix, whatever it is.
            got = [(s.label.split("-")[-1], s.start, s.end) for s in mine(text)]
            assert got == want
            assert [s.score for s in mine(text)] == pytest.approx(
                [float(s["score"]) for s in theirs(text)], rel=1e-4
            )
            assert all(s.text == text[s.start : s.end] for s in mine(text))
            same(streaming(text), mine(text))
    assert mine(list(TEXTS)) == [mine(text) for text in TEXTS]
    assert mine([]) == []


WORDS = (
    "the",
    "Work",
    "contributors",
    "(and)",
    "12345",
    "Zürich,",
    "nai\u0308ve",
    "世界",
    "👩‍👩‍👧",
    "½",
)
GAPS = (" ", " ", " ", "  ", "\r\n", "\n", "", "\u3000")
texts = st.lists(
    st.one_of(st.sampled_from(WORDS), st.sampled_from(GAPS), st.text(max_size=3)), max_size=30
).map("".join)
cuts_of = st.lists(st.integers(0, 10_000), max_size=12)


def cut(text, cuts):
    places = sorted({0, len(text), *(place % (len(text) + 1) for place in cuts)})
    return [text[start:end] for start, end in itertools.pairwise(places)]


@pytest.fixture(scope="module")
def taggers(folders):
    """Taggers by scheme, memory and aggregation."""
    return {
        (scheme, memory, how): at.pipeline("ner", full, memory=memory, aggregation=how)
        for scheme in SCHEMES
        for full in [at.load(folders[scheme])]
        for memory in ("attendre:16", "attendre:512", None)
        for how in ("first", "simple")
    }


@pytest.mark.parametrize("scheme", SCHEMES)
class TestStreams:
    @given(text=texts, cuts=cuts_of, how=st.sampled_from(["first", "simple"]))
    @settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_pieces_change_nothing(self, taggers, scheme, text, cuts, how):
        tagger = taggers[scheme, "attendre:16", how]
        whole = tagger(text)
        assert list(tagger.stream(cut(text, cuts))) == whole
        # Bytes are cut inside of characters, too.
        assert list(tagger.stream(cut(text.encode(), cuts))) == whole
        assert list(tagger.stream(text)) == list(tagger.stream(text.encode())) == whole
        places = [(span.start, span.end) for span in whole]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(places))
        assert all(span.text == text[span.start : span.end] for span in whole)

    @given(text=texts, how=st.sampled_from(["first", "simple"]))
    @settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def test_a_large_memory_is_full_attention(self, taggers, scheme, text, how):
        full = taggers[scheme, None, how](text)
        same(taggers[scheme, "attendre:512", how](text), full)


@pytest.mark.thorough("jax")
def test_every_backend(folders, library):
    text = " ".join(LICENSE)[:1500]
    want = at.pipeline("ner", folders["BIO"], memory="attendre:64")(text)
    assert len(want) > 50
    tagger = at.pipeline("ner", folders["BIO"], memory="attendre:64", backend=library)
    same(list(tagger.stream(cut(text, [100, 777]))), want)


def test_a_span_comes_out_once_it_is_certain(word_tagger):
    """Later than the delay, a chunk and a segment of text, none is held back."""
    tagger = at.pipeline("ner", word_tagger, memory="attendre:16")
    assert tagger.delay == 8
    chunk, words, read = tagger.model.used_memory.chunk, 2000, 0

    def pieces():
        nonlocal read
        for number in range(words):
            read = number
            yield "Ada " if number % 7 == 0 else "met "

    waited = [read - span.start // 4 for span in tagger.stream(pieces())]
    assert len(waited) == words // 7 + 1
    segment = 48 // 4 + 2
    assert max(waited) <= tagger.delay + chunk + segment + 1


def test_spans_across_chunks(word_tagger):
    """Words of one span are in chunks of their own, wherever it lies."""
    tagger = at.pipeline("ner", word_tagger, memory=replace(at.preset("attendre:16"), chunk=4))
    for ahead in range(12):
        text = "met " * ahead + "Ada Lovelace Ada Charles Babbage met New York"
        found = [(span.label, span.text) for span in tagger.stream([text])]
        assert found == [("PER", "Ada Lovelace Ada Charles Babbage"), ("LOC", "New York")]


@pytest.mark.parametrize(
    "lines",
    [1000, pytest.param(7200, marks=pytest.mark.thorough)],
    ids=["minutes", "a quarter of an hour"],
)
def test_a_stream_takes_no_more_memory_the_longer_it_is(word_tagger, lines):
    """A log of eight lines a second."""
    tagger = at.pipeline("ner", word_tagger, memory="attendre:64")

    def log(lines):
        for number in range(lines):
            if number % 20 == 0:
                gc.collect()  # else Python keeps some thousand tuples for later
            yield "ada " * 9 + "\n" if number % 2 else f"{number:07d} user Ada Lovelace logged in\n"

    def peak(lines):
        gc.freeze()  # so that collecting is quick
        tracemalloc.start()
        count = sum(1 for _ in tagger.stream(log(lines)))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.unfreeze()
        return count, most

    peak(100)
    some, before = peak(200)
    many, after = peak(lines)
    assert (some, many) == (200, lines)
    assert after < before + 50_000, f"{before} bytes for 200 lines, {after} for {lines}"


def test_bytes_that_are_not_utf8_are_replaced(word_tagger):
    tagger = at.pipeline("ner", word_tagger, memory="attendre:16")
    (found,) = tagger.stream([b"\xff\xfe met Ad", b"a\xc3", b" \xe4\xb8", "x"])
    assert found[:4] == ("PER", "Ada", 7, 10)
    assert tagger(b"met Ada") == tagger("met Ada")
    with pytest.raises(at.ConfigError, match="character 4 of the text is half of a character"):
        list(tagger.stream(["met ", "\ud83d"]))
    with pytest.raises(at.DTypeError, match="a piece is a int"):
        list(tagger.stream([1]))


@pytest.mark.parametrize("text", ["", " ", "\u200b", "\n\n"])
def test_texts_without_tokens(word_tagger, text):
    for memory in (None, "attendre:16"):
        assert at.pipeline("ner", word_tagger, memory=memory)(text) == []
    assert list(at.pipeline("ner", word_tagger, memory=16).stream([text, "", text])) == []


def test_an_interrupted_stream_leaves_the_tagger_as_it_was(word_tagger):
    tagger = at.pipeline("ner", word_tagger, memory="attendre:16")
    text = "met Ada Lovelace in London " * 20

    def pieces():
        yield text
        raise KeyboardInterrupt

    found = []
    with pytest.raises(KeyboardInterrupt):
        found.extend(tagger.stream(pieces()))
    whole = tagger(text)
    assert tagger(text) == whole
    assert len(whole) == 40


class TestMistakes:
    def test_tasks_are_listed(self, word_tagger):
        with pytest.raises(at.ConfigError, match="'fill-mask' is not known, expected one of token"):
            at.pipeline("fill-mask", word_tagger)

    def test_no_head(self, word_tagger, tmp_path):
        for name in ("vocab.txt", "tokenizer_config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((word_tagger / name).read_bytes())
        config = json.loads((word_tagger / "config.json").read_text())
        (tmp_path / "config.json").write_text(
            json.dumps({**config, "architectures": ["BertModel"]})
        )
        with pytest.raises(at.ConfigError, match="no head, expected one for token classification"):
            at.pipeline("ner", tmp_path)
        with pytest.raises(at.ConfigError, match="kind 'token', expected one for sequence"):
            at.pipeline("text-classification", word_tagger)

    def test_no_tokenizer(self, word_tagger, tmp_path):
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes((word_tagger / name).read_bytes())
        with pytest.raises(at.ConfigError, match="without a tokenizer"):
            at.pipeline("ner", tmp_path)
        assert at.pipeline("ner", tmp_path, tokenizer=word_tagger)("Ada")[0].label == "PER"

    def test_options(self, word_tagger):
        model = at.load(word_tagger)
        with pytest.raises(at.ConfigError, match="aggregation is 'max', expected 'first' or"):
            at.pipeline("ner", model, aggregation="max")
        with pytest.raises(at.ConfigError, match="aggregation is for token classification"):
            at.pipeline("text-classification", model, aggregation="first")
        with pytest.raises(at.ConfigError, match="dtype is for a checkpoint"):
            at.pipeline("ner", model, dtype="float16")
        with pytest.raises(at.ConfigError, match="without a memory.*memory=512"):
            at.pipeline("ner", model).stream(["a"])
        with pytest.raises(at.ConfigError, match="without a memory there is none"):
            _ = at.pipeline("ner", model).delay
        tagger = at.pipeline("ner", model, memory=16)
        assert isinstance(tagger, Tagger)
        assert tagger.model.memory is not None
        assert tagger.labels[:2] == ("O", "B-PER")


def test_text_classification_equals_transformers(folder_of):
    transformers = pytest.importorskip("transformers")
    for labels in (["bad", "good", "ugly"], ["relevance"]):
        folder = folder_of(labels, "SequenceClassification")
        mine = at.pipeline("text-classification", folder)
        assert isinstance(mine, Classifier)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = transformers.pipeline(
                "text-classification",
                model=transformers.BertForSequenceClassification.from_pretrained(folder),
                tokenizer=transformers.BertTokenizer.from_pretrained(str(folder)),
            )
        wanted = [Classification(**theirs(text)[0]) for text in TEXTS]
        assert [got.label for got in mine(list(TEXTS))] == [want.label for want in wanted]
        assert [got.score for got in mine(list(TEXTS))] == pytest.approx(
            [want.score for want in wanted], rel=1e-4
        )
        assert mine(TEXTS[0]).label == wanted[0].label
        assert mine([]) == []


@pytest.mark.parametrize("kind", ["TokenClassification", "SequenceClassification"])
def test_no_label_is_chosen_among_nan(folder_of, kind):
    """Not the first label, which is the place of the largest among NaN."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    folder = folder_of(["first", "second", "third"], kind)
    tensors = numpy_files.load_file(folder / "model.safetensors")
    tensors["classifier.bias"][1] = float("nan")
    numpy_files.save_file(tensors, folder / "model.safetensors")
    task = "ner" if kind == "TokenClassification" else "text-classification"
    with pytest.raises(at.errors.NonFiniteError, match="a logit is NaN.*nothing can be chosen"):
        at.pipeline(task, folder)(TEXTS[0])


def test_many_texts_are_classified_in_batches(folder_of, monkeypatch):
    classifier = at.pipeline(
        "text-classification", folder_of(["bad", "good"], "SequenceClassification")
    )
    texts = [f"{TEXTS[0]} {'and so on ' * (number % 3)}{number}" for number in range(20)]
    alone = [classifier(text) for text in texts]
    sizes, classify = [], type(classifier.model).classify

    def counted(model, rows):
        sizes.append(len(rows))
        return classify(model, rows)

    monkeypatch.setattr(type(classifier.model), "classify", counted)
    found = classifier(texts)
    assert sum(sizes) == 20
    assert max(sizes) == 8
    assert [one.label for one in found] == [one.label for one in alone]
    assert [one.score for one in found] == pytest.approx([one.score for one in alone], rel=1e-5)
