"""Tokenizers of encoders without a tokenizer.json: RoBERTa, XLM-R, CamemBERT, DeBERTa, MPNet."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core.zoo.tokenizers import tokenizer_at, tokenizer_of

tokenizers = pytest.importorskip("tokenizers")
pieces = pytest.importorskip("sentencepiece")

LICENSE = (Path(__file__).resolve().parents[2] / "LICENSE").read_text()
TEXTS = (
    "Hello world", "  two leading", "in 2024: 1,000,000 cats", "naïve café Ωμέγα 世界", "🦎", "",
    "the licence of the work\nand more",
)  # fmt: skip
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture(scope="module")
def byte_pairs(tmp_path_factory):
    """Folder of a small RoBERTa vocabulary."""
    folder = tmp_path_factory.mktemp("byte-pairs")
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(
        LICENSE.splitlines(), vocab_size=400, special_tokens=SPECIAL, show_progress=False
    )
    trained.save_model(str(folder))
    return folder


@pytest.fixture(scope="module")
def unigram():
    """The bytes of a small SentencePiece model, as XLM-R and CamemBERT have."""
    return trained_pieces()


def trained_pieces(**options):
    model = io.BytesIO()
    pieces.SentencePieceTrainer.train(
        sentence_iterator=iter(LICENSE.splitlines()), model_writer=model, vocab_size=200,
        hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    return model.getvalue()


@pytest.mark.parametrize("prefixed", [False, True])
def test_roberta_equals_transformers(prefixed, byte_pairs, tmp_path):
    transformers = pytest.importorskip("transformers")
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / name).write_bytes((byte_pairs / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": prefixed}))
    theirs = transformers.RobertaTokenizer(
        vocab=str(tmp_path / "vocab.json"), merges=str(tmp_path / "merges.txt"),
        add_prefix_space=prefixed,
    )  # fmt: skip
    ours = tokenizer_of(tmp_path)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        assert ours.encode(text, special=False) == theirs.encode(text)[1:-1]
    assert ours.decode(ours.encode("Hello world")).strip() == "Hello world"
    assert tokenizer_at(tmp_path / "merges.txt").encode("a b") == ours.encode("a b")


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ({"a": 0, "b": 5}, "its 2 numbers are not those from 0 to 1"),
        ({"a": 0, "b": 1}, "has no token <s>"),
        ({"a": -1}, "expected a whole number"),
        ([1], "expected an object"),
    ],
)
def test_odd_vocabularies_are_refused(content, match, tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps(content))
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\n")
    with pytest.raises(at.CheckpointError, match=match):
        tokenizer_of(tmp_path)


def test_odd_merges_are_refused(byte_pairs, tmp_path):
    (tmp_path / "vocab.json").write_bytes((byte_pairs / "vocab.json").read_bytes())
    (tmp_path / "merges.txt").write_text("#version: 0.2\nnot-there either\n")
    with pytest.raises(at.CheckpointError, match=r"merges\.txt: the merges hold 'not-there either"):
        tokenizer_of(tmp_path)


@pytest.mark.parametrize(
    ("kind", "offset", "ends"), [("xlm-roberta", 1, (0, 2)), ("camembert", 4, (5, 6))]
)
def test_pieces_are_numbered_as_fairseq_numbers_them(kind, offset, ends, unigram, tmp_path):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(unigram)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    plain = pieces.SentencePieceProcessor(model_proto=unigram)
    ours = tokenizer_of(tmp_path)
    for text in TEXTS:
        want = [3 if piece == 0 else piece + offset for piece in plain.encode(text)]
        assert ours.encode(text, special=False) == want
        assert ours.encode(text) == [ends[0], *want, ends[1]]
    assert ours.decode(ours.encode("Hello the world")) == "Hello the world"
    assert ours.decode([0, 1, 2, 3, 10**6]) == ""
    again = tokenizer_at(tmp_path / "sentencepiece.bpe.model")
    assert again.encode("the work") == ours.encode("the work")


def test_deberta_finds_its_ends_among_the_pieces(tmp_path, unigram):
    own = trained_pieces(
        control_symbols=["[PAD]", "[CLS]", "[SEP]"], unk_piece="[UNK]", bos_id=-1, eos_id=-1
    )
    (tmp_path / "spm.model").write_bytes(own)
    plain, ours = pieces.SentencePieceProcessor(model_proto=own), tokenizer_of(tmp_path)
    first, last = plain.piece_to_id("[CLS]"), plain.piece_to_id("[SEP]")
    for text in TEXTS:
        assert ours.encode(text) == [first, *plain.encode(text), last]
    assert ours.decode(ours.encode("Hello the world")) == "Hello the world"
    (tmp_path / "spm.model").write_bytes(unigram)
    with pytest.raises(at.CheckpointError, match=r"no pieces \[CLS\] and \[SEP\]"):
        tokenizer_of(tmp_path)


def test_mpnet_has_other_ends(tmp_path):
    words = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]", "the", "work", "##s", "<mask>"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    ours = tokenizer_of(tmp_path)
    assert ours.encode("The works, the") == [0, 5, 6, 7, 4, 5, 2]
    assert ours.decode([0, 5, 6, 7, 2]) == "the works"
