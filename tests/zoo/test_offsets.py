"""Where tokens are in a text, and texts that arrive in pieces, for tokenizers of every kind."""

from __future__ import annotations

import functools
import io
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.zoo.tokenizers import tokenizer_at, tokenizer_of
from attendre_core.zoo.tokenizers.byte_level import PRE_TOKENIZERS, byte_level_tokenizer
from attendre_core.zoo.tokenizers.incremental import IncrementalTokenizer
from attendre_core.zoo.tokenizers.pieces import MarianTokenizer, PieceTokenizer
from attendre_core.zoo.tokenizers.scored import ScoredTokenizer
from attendre_core.zoo.tokenizers.shifted import shifted_tokenizer
from attendre_core.zoo.tokenizers.unigram import unigram_tokenizer
from attendre_core.zoo.tokenizers.vocabulary import VocabularyTokenizer

tokenizers = pytest.importorskip("tokenizers")
sentencepiece = pytest.importorskip("sentencepiece")

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = [
    line
    for name in ("LICENSE", "CONTRIBUTING.md")
    for line in (REPOSITORY / name).read_text(encoding="utf-8").splitlines()
]
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
ALPHABET = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
WAYS = sorted(set(PRE_TOKENIZERS.values()))


def wordpiece(folder, lowered):
    trained = tokenizers.BertWordPieceTokenizer(lowercase=lowered)
    trained.train_from_iterator([*CORPUS, "Zürich naïve 世界 über"], 400, show_progress=False)
    ids = trained.get_vocab()
    listed = sorted(ids, key=lambda piece: ids[piece])
    (folder / "vocab.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lowered}))
    return tokenizer_of(folder)


@functools.cache
def byte_level(way):
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(CORPUS, vocab_size=500, show_progress=False)
    kept = json.loads(trained.to_str())["model"]
    listed = sorted(kept["vocab"], key=lambda piece: kept["vocab"][piece])
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in kept["merges"]]
    return byte_level_tokenizer("here", listed, merges, [1] * len(listed), way, (), ())


def metaspace(folder, *, prepends):
    """The ways of Llama 2 and of XLM-R, as a ``tokenizer.json``."""
    kinds, rules = tokenizers.pre_tokenizers, tokenizers.normalizers
    if prepends:
        inner = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", byte_fallback=True))
        inner.pre_tokenizer = kinds.Metaspace(SPACE, prepend_scheme="first")
        trainer = tokenizers.trainers.BpeTrainer(
            vocab_size=600, show_progress=False,
            special_tokens=["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))],
        )  # fmt: skip
    else:
        inner = tokenizers.Tokenizer(tokenizers.models.Unigram())
        inner.pre_tokenizer = kinds.Sequence([kinds.WhitespaceSplit(), kinds.Metaspace(SPACE)])
        inner.normalizer = rules.Sequence([rules.NFKC(), rules.StripAccents()])
        trainer = tokenizers.trainers.UnigramTrainer(
            vocab_size=300, show_progress=False, special_tokens=["<unk>"], unk_token="<unk>"
        )
    inner.train_from_iterator(CORPUS, trainer)
    if prepends:
        inner.pre_tokenizer = None
        inner.normalizer = rules.Sequence([rules.Prepend(SPACE), rules.Replace(" ", SPACE)])
    inner.save(str(folder / "tokenizer.json"))
    return tokenizer_of(folder)


def sentencepiece_model(file, kind, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*CORPUS, "Zürich naïve 世界 über"]), model_writer=model,
        vocab_size=600, model_type=kind, hard_vocab_limit=False, minloglevel=2, **options,
    )  # fmt: skip
    file.write_bytes(model.getvalue())
    return file


def marian(folder):
    for name in ("source.spm", "target.spm"):
        sentencepiece_model(folder / name, "unigram")
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "source.spm"))
    listed = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    ids = {piece: number for number, piece in enumerate(["</s>", "<unk>", ">>fra<<", *listed[3:]])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    return MarianTokenizer(folder)


def scored(folder):
    """The tokenizer of Llama 2 in a GGUF file."""
    model = sentencepiece.SentencePieceProcessor(
        model_proto=sentencepiece_model(folder / "m", "bpe", byte_fallback=True).read_bytes()
    )
    count = range(model.get_piece_size())
    listed = [model.id_to_piece(number) for number in count]
    return ScoredTokenizer(
        listed,
        [model.get_score(number) for number in count],
        mergeable=[n for n in count if not model.is_byte(n) and not model.is_control(n) and n],
        byte_ids={int(listed[n][3:5], 16): n for n in count if model.is_byte(n)},
        space=SPACE,
        prefix_space=True,
        special=(0, 1, 2),
        whole={"</s>": 2},
        unknown=0,
    )


def unigram_of_gguf(folder):
    model = sentencepiece.SentencePieceProcessor(
        model_proto=sentencepiece_model(folder / "m", "unigram").read_bytes()
    )
    listed = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    scores = [model.get_score(number) for number in range(len(listed))]
    return unigram_tokenizer(
        "here", listed, scores, unknown=0, special=(0, 1, 2), whole=(), replacements=b"",
        before=(), after=(),
    )  # fmt: skip


def made(kind, folder):
    if kind in ("lowered", "cased"):
        return wordpiece(folder, kind == "lowered")
    if kind in WAYS:
        return byte_level(kind)
    if kind.startswith("metaspace"):
        return metaspace(folder, prepends=kind.endswith("bpe"))
    if kind.startswith("pieces"):
        options = {"byte_fallback": True} if kind.endswith("bpe") else {}
        file = sentencepiece_model(folder / "tokenizer.model", kind[7:], **options)
        return PieceTokenizer(file)
    if kind == "shifted":  # the numbers of XLM-R
        file = sentencepiece_model(folder / "sentencepiece.bpe.model", "unigram")
        return shifted_tokenizer(file)
    if kind == "words":
        return VocabularyTokenizer(("<s>", "the", "of", "Work"), ())
    if kind == "characters":
        return VocabularyTokenizer(("<s>", *"abcdefgh ", "é"), ())
    return {"marian": marian, "scored": scored, "gguf-unigram": unigram_of_gguf}[kind](folder)


KINDS = (
    "lowered", "cased", *WAYS, "metaspace-bpe", "metaspace-unigram", "pieces-bpe",
    "pieces-unigram", "shifted", "marian", "scored", "gguf-unigram", "words", "characters",
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(kind, tmp_path_factory):
    return made(kind, tmp_path_factory.mktemp("tokenizer"))


WORDS = (
    "the", "Work", "contributors'", "(and)", "12345", "Zürich,", "nai\u0308ve", "世界",
    "こんにちは", "e\u0301\u0302", "ΌΣΟΣ.", "क़ानून",
    "½", "ﬁne", "👩‍👩‍👧", "🇫🇷!", "</s>", "[SEP]", ">>fra<<", "İ", "don't",
    "a" * 120, "---", "x=1;y", "\u200bzero", "l'œuvre",
)  # fmt: skip
GAPS = (" ", " ", " ", " ", "  ", "\n", "\r\n", "\t", " \n ", "", "\u00a0", "\u3000", "    ")
texts = st.lists(
    st.one_of(st.sampled_from(WORDS), st.sampled_from(GAPS), st.text(max_size=4)), max_size=40
).map("".join)
usual = st.lists(
    st.tuples(st.sampled_from(WORDS), st.sampled_from(GAPS)), max_size=30
).map(lambda pairs: "".join(word + gap for word, gap in pairs))  # fmt: skip


def in_pieces(tokenizer, text, cuts, **limits):
    incremental = IncrementalTokenizer(tokenizer, **limits)
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    ids, offsets = [], []
    for start, end in itertools.pairwise(places):
        more = incremental.feed(text[start:end])
        ids += more[0]
        offsets += more[1]
    more = incremental.end()
    return ids + more[0], offsets + more[1]


@pytest.mark.parametrize("kind", KINDS, scope="module")
class TestEveryKind:
    @given(text=texts)
    @settings(max_examples=30, deadline=None)
    def test_offsets(self, tokenizer, kind, text):
        ids, offsets = tokenizer.encode_with_offsets(text)
        assert ids == tokenizer.encode(text, special=False)
        assert len(offsets) == len(ids)
        starts = [start for start, _ in offsets]
        assert starts == sorted(starts)
        assert all(0 <= start <= end <= len(text) for start, end in offsets)

    @given(text=usual, least=st.integers(1, 60))
    @settings(max_examples=30, deadline=None)
    def test_segments_are_tokenised_as_the_whole(self, tokenizer, kind, text, least):
        got = in_pieces(tokenizer, text, [], least=least, longest=100_000)
        assert got == tokenizer.encode_with_offsets(text)


@given(
    text=st.one_of(texts, usual),
    cuts=st.lists(st.integers(0, 1000), max_size=30),
    longest=st.integers(6, 60),
)
@settings(max_examples=300, deadline=None)
def test_pieces_change_nothing(text, cuts, longest):
    """Where a text is cut is the same for every tokenizer: a function of the text alone."""
    tokenizer = byte_level("gpt-2")
    limits = {"least": 3, "longest": longest}
    assert in_pieces(tokenizer, text, cuts, **limits) == in_pieces(tokenizer, text, [], **limits)


def test_bytes_of_a_character_share_its_span():
    ids, offsets = byte_level("gpt-2").encode_with_offsets("a é😀")
    assert len(ids) == len(offsets) == 8
    assert offsets[2:] == [(2, 3)] * 2 + [(3, 4)] * 4


def test_pieces_of_a_character_share_its_span(tmp_path):
    file = sentencepiece_model(tmp_path / "tokenizer.model", "bpe", byte_fallback=True)
    for tokenizer in (tokenizer_at(file), scored(tmp_path)):
        _, offsets = tokenizer.encode_with_offsets("x 😀½")
        assert offsets.count((2, 3)) == 4
        assert offsets[-1] == (3, 4)


def test_marks_that_a_normaliser_drops_are_covered(tmp_path):
    _, offsets = wordpiece(tmp_path, True).encode_with_offsets("e\u0301\u0302 u\u0308")
    assert offsets == [(0, 3), (4, 6)]


def test_the_tokenizer_beside_a_model_of_llama2c(data_folder):
    tokenizer = at.load(data_folder / "models" / "stories260K").tokenizer
    text = "Once upon a time,  Zoë 😀 said"
    ids, offsets = tokenizer.encode_with_offsets(text)
    assert ids == tokenizer.encode(text, special=False)
    for token, (start, end) in zip(ids, offsets, strict=True):
        assert tokenizer.decode([token]).strip() in (text[start:end].strip(), "\ufffd")
    assert in_pieces(tokenizer, text, [3, 9, 20], least=1) == (ids, offsets)


def test_little_waits():
    tokenizer = byte_level("gpt-2")
    incremental, tokens = IncrementalTokenizer(tokenizer), 0
    for number in range(5000):
        ids, offsets = incremental.feed("ab" if number % 50 else "\n")
        tokens += len(ids)
        # What is known lags behind what was fed by no more than `longest`.
        assert not offsets or number * 2 - offsets[-1][1] <= 1024
    assert tokens > 3000
    assert len(incremental.end()[0]) <= 1024
    assert incremental.end() == ([], [])


def test_half_a_character_is_refused():
    incremental = IncrementalTokenizer(VocabularyTokenizer(("a",), ()))
    incremental.feed("aaa")
    with pytest.raises(at.ConfigError, match=r"character 4 .*'\\ud83d'"):
        incremental.feed("é\ud83d")
    assert incremental.end()[0] == [0, 0, 0]
    with pytest.raises(at.DTypeError, match="a bytes, expected a text"):
        incremental.feed(b"a")


def test_a_tokenizer_without_offsets_is_refused():
    with pytest.raises(at.ConfigError, match="the object does not say where its tokens are"):
        IncrementalTokenizer(object())
