"""Tokenizers of encoders, T5, Falcon and Command-R in GGUF files, as converters write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attendre_core.zoo.tokenizers import tokenizer_of
from attendre_core.zoo.tokenizers.byte_level import PRE_TOKENIZERS, _pre_tokenizer
from attendre_core.zoo.tokenizers.from_gguf import tokenizer_of_gguf

tokenizers = pytest.importorskip("tokenizers")

#: A text that does not change: other libraries add scores up in float32, and may differ in ties.
CORPUS = [(Path(__file__).parents[2] / "LICENSE").read_text()]
TEXTS = (
    "Hello world", "  two leading, trailing  ", "in 2024: 1,000,000 cats & 12345 dogs  42",
    "def f(x):\n    return x**2  # 10%\n\n\n", "I'm YOU'RE it's 'q' don't", "tab\t\tend\r\n\r\n",
    "naïve café Ωμέγα Привет 世界", "🦎 ½ ﬁne", "", " ", "(((  ]]]!?...", "$5 + <7> = 3|4 `x`",
)  # fmt: skip
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


def from_metadata(**values):
    """Build a tokenizer from what a header holds: numbers are arrays."""
    arrays = {
        name: np.asarray(value) if isinstance(value, list) and not isinstance(value[0], str)
        else value
        for name, value in values.items()
    }  # fmt: skip
    return tokenizer_of_gguf("file", {f"tokenizer.ggml.{n}": v for n, v in arrays.items()})


def test_wordpiece_equals_the_vocabulary_beside_a_folder(tmp_path):
    trained = tokenizers.BertWordPieceTokenizer(lowercase=True)
    trained.train_from_iterator(CORPUS, vocab_size=400, show_progress=False)
    ids = trained.get_vocab()
    pieces = sorted(ids, key=lambda piece: ids[piece])
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    special = [piece.startswith("[") and piece.endswith("]") for piece in pieces]
    marked = [
        piece if control else piece[2:] if piece.startswith("##") else SPACE + piece
        for piece, control in zip(pieces, special, strict=True)
    ]
    kinds = [3 if control else 1 for control in special]
    mine = from_metadata(model="bert", tokens=marked, token_type=kinds)
    expected = tokenizer_of(tmp_path)
    for text in TEXTS:
        assert mine.encode(text) == expected.encode(text)
        assert mine.decode(mine.encode(text)) == expected.decode(mine.encode(text))


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
def test_unigram_equals_sentencepiece(rule, tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    protobuf = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    (tmp_path / "corpus.txt").write_text("\n".join(CORPUS), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "corpus.txt"), model_prefix=str(tmp_path / "t5"), vocab_size=500,
        model_type="unigram", normalization_rule_name=rule, minloglevel=2,
        hard_vocab_limit=False, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
    )  # fmt: skip
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "t5.model"))
    proto = protobuf.ModelProto.FromString((tmp_path / "t5.model").read_bytes())
    replacements = proto.normalizer_spec.precompiled_charsmap
    assert bool(replacements) == (rule == "nmt_nfkc")
    count = range(theirs.get_piece_size())
    values = {
        "model": "t5", "pre": "default", "eos_token_id": 1,
        "tokens": [*(theirs.id_to_piece(i) for i in count), "<extra_id_0>"],
        "scores": [*(theirs.get_score(i) for i in count), -1000.0],
        "token_type": [*(2 if theirs.is_unknown(i) else 3 if theirs.is_control(i) else 1
                         for i in count), 4],
    }  # fmt: skip
    if replacements:
        values["precompiled_charsmap"] = np.frombuffer(replacements, np.uint8).tolist()
    mine = from_metadata(**values)
    for text in (*TEXTS, *CORPUS):
        if rule == "identity" and text.split() != text.replace(SPACE, " ").split(" "):
            continue  # without a rule for them, other blanks than a space are characters
        ids = theirs.encode(text)
        assert mine.encode(text) == [*ids, 1]
        if 2 not in ids:
            assert mine.decode([*ids, 1]) == theirs.decode(ids)
    blank = len(count)
    assert mine.encode("the <extra_id_0>")[-2:] == [blank, 1]
    assert mine.encode("</s>") == [1, 1]


#: How llama.cpp cuts texts: one expression after the other, what is between matches stays too.
GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
CUTS = {
    "command-r": (r"\p{N}", GPT_2),
    "falcon": (r"[\p{P}\$\+<=>\^~\|`]+", GPT_2, "[0-9][0-9][0-9]"),
    "modern-bert": (GPT_2,),
}


def cut(text, expressions):
    regex = pytest.importorskip("regex")
    parts = [text]
    for expression in expressions:
        parts = [
            piece
            for part in parts
            for piece in regex.splititer(f"({expression})", part, flags=regex.V1)
            if piece
        ]
    return parts


@pytest.mark.parametrize("pre", CUTS)
def test_texts_are_cut_as_llama_cpp_cuts_them(pre):
    way = _pre_tokenizer(tokenizers, PRE_TOKENIZERS[pre])
    for text in (*TEXTS, *CORPUS):
        found = [text[start:stop] for _, (start, stop) in way.pre_tokenize_str(text)]
        assert found == cut(text, CUTS[pre])
