"""Texts fed in pieces: special tokens once, answers in kind, pieces of what is written."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.pieces import Pieces
from attendre_core.zoo.tokenizers import tokenizer_of
from attendre_core.zoo.tokenizers.around import around

tokenizers = pytest.importorskip("tokenizers")

PARTS = ["Once upon a time", " there was", " a memory."]


@pytest.fixture
def beginning(tiny_folder, tmp_path):
    """A Llama whose tokenizer begins texts with token 10 and, if asked, ends them with token 11."""

    def make(ends=False):
        folder = shutil.copytree(tiny_folder, tmp_path / f"model-{ends}")
        inner = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        inner.add_special_tokens([inner.id_to_token(10), inner.id_to_token(11)])
        first, last = inner.id_to_token(10), inner.id_to_token(11)
        inner.post_processor = tokenizers.processors.TemplateProcessing(
            single=f"{first} $A {last}" if ends else f"{first} $A",
            special_tokens=[(first, 10), (last, 11)],
        )
        inner.save(str(folder / "tokenizer.json"))
        return folder

    return make


def read(model, monkeypatch, feed):
    """Return the tokens that a stream reads."""
    stream = model.stream()
    told = []
    read = stream._reader.read

    def recorded(state, tokens, position, valid, types=None):
        told.extend(np.asarray(tokens)[0][np.asarray(valid)[0]].tolist())
        return read(state, tokens, position, valid, types)

    monkeypatch.setattr(stream._reader, "read", recorded)
    feed(stream)
    stream.finish()
    return told


@pytest.mark.parametrize("ends", [False, True])
def test_special_tokens_are_read_once(beginning, ends, monkeypatch):
    model = at.load(beginning(ends), memory="MT+chunk=8:64")
    whole = model.tokens("".join(PARTS))
    assert whole[0] == 10
    assert (whole[-1] == 11) == ends
    assert around(model.tokenizer) == ([10], [11] if ends else [])
    assert model.tokens("ab", special=False) == model.tokens("ab")[1:3]

    def in_pieces(stream):
        for part in PARTS:
            stream.feed(part)

    assert read(model, monkeypatch, in_pieces) == whole

    def ids_first(stream):
        stream.feed([9, 9])
        stream.feed("ab")

    plain = model.tokens("ab", special=False)
    assert read(model, monkeypatch, ids_first) == [9, 9, *plain, *([11] if ends else [])]

    def ids_last(stream):
        stream.feed("ab")
        stream.feed([9, 9])

    assert read(model, monkeypatch, ids_last) == [10, *plain, 9, 9]


def test_a_saved_stream_knows_that_its_text_is_open(beginning, tmp_path, monkeypatch):
    model = at.load(beginning(True), memory="MT+chunk=8:64")
    stream = model.stream()
    stream.feed(PARTS[0])
    stream.save(tmp_path / "stream.safetensors")
    restored = model.restore(tmp_path / "stream.safetensors")
    for each in (stream, restored):
        each.feed(PARTS[1])
    assert restored.generate(4) == stream.generate(4)
    assert restored.lengths == stream.lengths == (len(PARTS[0] + PARTS[1]) + 2,)


def test_bert_reads_one_cls_and_one_sep(tmp_path, made_up, monkeypatch):
    config = {
        "model_type": "bert", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 40, "max_position_embeddings": 64,
        "type_vocab_size": 2,
    }  # fmt: skip
    folder = made_up(config)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"w{i}" for i in range(27))]) + "\n")
    model = at.load(folder, memory=at.preset("LFA-0", kv_size=32, q_size=8, chunk=4))
    assert around(model.tokenizer) == ([2], [3])
    whole = model.tokens("a b c d e f")

    def in_pieces(stream):
        for part in ("a b ", "c d ", "e f"):
            stream.feed(part)

    assert read(model, monkeypatch, in_pieces) == whole
    stream = model.stream()
    outputs = [h for part in ("a b ", "c d ", "e f") for h in stream.read(part)]
    outputs += stream.finish()
    assert sum(int(np.asarray(h.valid).sum()) for h in outputs) == len(whole)


def test_every_kind_of_tokenizer_leaves_special_tokens_out(tmp_path):
    pieces = pytest.importorskip("sentencepiece")
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(
        "the memory forgot what it did not need\n" * 50 + "abcdefghijklmnopqrstuvwxyz"
    )
    pieces.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "tokenizer"), vocab_size=60,
        minloglevel=2, hard_vocab_limit=False,
    )  # fmt: skip
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_eos_token": True}))
    mine = tokenizer_of(tmp_path)
    plain = mine.encode("the memory", special=False)
    assert mine.encode("the memory") == [1, *plain, 2]
    assert mine.encode("<s>the memory</s>", special=False) == [1, *plain, 2]
    assert around(mine) == ([1], [2])


# ---------------------------------------------------------------- answers in kind


def test_what_goes_in_comes_out(tiny_folder):
    model = at.load(tiny_folder, memory="MT+chunk=8:64")
    ids = [model.tokens(part) for part in PARTS]
    for given in (PARTS[0], PARTS, ids[0], ids):
        want = model.generate(given, 5)
        single = isinstance(given, str) or isinstance(given[0], int)
        stream = model.stream(1 if single else 3)
        stream.feed(given)
        assert stream.generate(5) == want
        one = want if single else want[0]
        assert isinstance(one, str if given in (PARTS[0], PARTS) else list)
    stream = model.stream()
    stream.feed(PARTS[0])
    stream.feed(ids[1])
    assert isinstance(stream.generate(2)[0], int), "not all of it was text"
    stream = model.stream()
    stream.feed(PARTS[0])
    free = stream.generate(30)
    for stop in ([free[3:5]], free[3:5]):  # one alone needs no list
        assert stream.generate(30, stop=stop) == free[: free.index(free[3:5])]
        assert model.generate(PARTS[0], 30, stop=stop) == free[: free.index(free[3:5])]


def test_pieces_of_rows_are_their_texts(tiny_folder):
    model = at.load(tiny_folder)
    heard = {0: [], 1: []}
    texts = model.generate(
        PARTS[:2], 25, temperature=1.5, seed=4, stop=["q"],
        on_token=lambda row, token, piece: heard[row].append(piece),
    )  # fmt: skip
    assert ["".join(pieces) for pieces in heard.values()] == texts


def test_what_was_held_back_comes_with_the_end(tiny_folder):
    """A row that ends with an end token in the middle of what could become a stop string."""
    model = at.load(tiny_folder)
    free = model.generate(model.tokens(PARTS[0]), 12)
    place = next(i for i in range(3, 12) if free[i] not in free[:i])
    model.end = (free[place],)
    text = model.text(free[:place])
    heard = []
    model.generate(
        PARTS[0], 12, stop=[text[-1] + "never"], on_token=lambda *told: heard.append(told)
    )
    assert "".join(piece for *_, piece in heard) == text
    assert heard[-1][1] == free[place]
    assert heard[-1][2]


def test_a_stop_string_may_come_in_any_pieces():
    for text in ("abcSTOPdef", "aSTSTOP", "STOP", "abcSTO", "S", "aSTxSTOPb"):
        pieces = Pieces(lambda tokens: "".join(map(chr, tokens)), ["STOP", "TOPX"])
        told = []
        for letter in text:
            told.append(pieces.add(ord(letter)))
            if pieces.stopped:
                break
        told.append(pieces.rest())
        assert "".join(told) == text.partition("STOP")[0]
