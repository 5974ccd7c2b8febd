"""Tokenizers that read well and cannot be used: our errors, and no more memory than there is."""

from __future__ import annotations

import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.zoo.tokenizers.fast import FastTokenizer
from attendre_core.zoo.tokenizers.growth import growth_of_characters
from attendre_core.zoo.tokenizers.patterns import check_pattern

tokenizers = pytest.importorskip("tokenizers")
OURS = (at.CheckpointError, at.ConfigError)
HALF = "a\ud800b"
BROKEN = b"good \xff\xfe\xc3 text\xed\xa0\x80\n"


def written(folder: Path, model: dict[str, Any] | None = None, **parts: Any) -> Path:
    words = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    names = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    content = {
        "version": "1.0", "added_tokens": [], **dict.fromkeys(names), "model": model or words,
        **parts,
    }  # fmt: skip
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content))
    return file


def replacing(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(pattern: str) -> dict[str, Any]:
    regex = {"Regex": pattern}
    return {"type": "Split", "pattern": regex, "behavior": "Isolated", "invert": False}


def test_a_pattern_that_takes_too_long_is_our_error(tmp_path: Path, capfd: Any) -> None:
    """The library panics with a BaseException once it has tried ten million ways."""
    found = FastTokenizer.from_file(written(tmp_path, pre_tokenizer=split("a*a*(?!a)[^b]")))
    assert found.encode("aa") == [1]
    for call in (found.encode, found.encode_with_offsets, lambda t: found.encode_pair("a", t)):
        with pytest.raises(at.CheckpointError, match="retry-limit-in-match"):
            call("a" * 6000 + "b")


ENDLESS = [
    "(a+)+$", "(?:a*)*", "(a|a){18}[bc]", "(aa?)+[bc]", "(?i:a|b)+", "(?>a|b)*", "(?=(a+)+b)",
    "((a{0,99}){0,99}){0,99}b", "(?<n>a+)+", "[^]a](a+)+", r"\](a+)+", r"[\]](a|b)+",
    "a(?#])(a+)+",
    "(a{2,3}){9}", "a*a*a*[bc]", "a{1,30}b{,30}c?d{2,}", r"(?<r>a\g<r>?a)$",
    "(" * 60 + ")" * 60,
]  # fmt: skip
#: In the manner of published tokenizers.
HONEST = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+",
    r"[^\r\n\p{L}]?[\p{Lu}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'ll)?|[^\r\n\p{L}]?[\p{Lu}\p{M}]+[\p{Ll}]*",
    r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+",
    r"[\p{Han}]+|[\p{L}&&[^\p{Han}]]*[\p{M}&&[^\p{Han}]]+(?i:'s|'t)?",
    r"(?=(\d{3})+(?!\d))", r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))", r" ?[^(\s|[.,!?])]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+", "[一-龥]+", "[]a]+x", " {2,}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", ENDLESS)
def test_patterns_that_can_take_endless_time_are_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(at.CheckpointError, match="which can take endless time"):
        check_pattern(pattern)
    replace = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}
    for parts in (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split(pattern)]}},
        {"normalizer": replace}, {"decoder": replace},
    ):  # fmt: skip
        with pytest.raises(at.CheckpointError):
            FastTokenizer.from_file(written(tmp_path, **parts))


@pytest.mark.parametrize("pattern", HONEST)
def test_patterns_of_published_tokenizers_are_not(tmp_path: Path, pattern: str) -> None:
    found = FastTokenizer.from_file(written(tmp_path, pre_tokenizer=split(pattern)))
    assert found.decode(found.encode("a"))


@pytest.mark.parametrize("pattern", ["[^", "[a", "[a\\", "(a", "a{2,", "\\"])
def test_patterns_without_an_end_are_left_to_their_library(pattern: str) -> None:
    check_pattern(pattern)


def test_words_of_any_length_are_refused(tmp_path: Path) -> None:
    """WordPiece takes the cube of them: 100,000 letters would take hours."""
    model = {"type": "WordPiece", "vocab": {"a": 0, "##a": 1, "[UNK]": 2}, "unk_token": "[UNK]",
             "continuing_subword_prefix": "##", "max_input_chars_per_word": 10**9}  # fmt: skip
    with pytest.raises(at.CheckpointError, match="words of 1000000000 characters"):
        FastTokenizer.from_file(written(tmp_path, model))


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLE = {
    "normalizer": {"type": "ByteLevel"}, "pre_tokenizer": BYTES,
    "decoder": {"type": "BPEDecoder", "suffix": ""},
}  # fmt: skip


@pytest.mark.parametrize("where", DOUBLE)
def test_steps_that_double_a_text_are_counted(
    tmp_path: Path, where: str, little_memory: Any
) -> None:
    """Thirty of them make a gigabyte of one space, and the library aborts."""
    name = where.replace("_", "") + "s"
    for step, count in ((DOUBLE[where], 30), ({**DOUBLE[where], "suffix": "x"}, 300)):
        steps = {"type": "Sequence", name: [step] * count}
        with pytest.raises(at.CheckpointError, match=f"the {where} of the tokenizer (may|has)"):
            FastTokenizer.from_file(written(tmp_path, **{where: steps}))


@pytest.mark.parametrize("where", ["normalizer", "decoder"])
def test_steps_that_fill_the_memory_are_refused(tmp_path: Path, where: str, little_memory: Any):
    """Five times a hundred letters for one would be ten gigabytes, and the library aborts."""
    kind = {"normalizer": "normalizers", "decoder": "decoders"}[where]
    steps = {"type": "Sequence", kind: [replacing("a", "a" * 100)] * 5}
    with pytest.raises(at.CheckpointError, match=f"{where} of the tokenizer may make 10000000000"):
        FastTokenizer.from_file(written(tmp_path, **{where: steps}))
    nested = {"type": "Sequence", kind: [steps]}
    with pytest.raises(at.CheckpointError, match="expected at most 128"):
        FastTokenizer.from_file(written(tmp_path, **{where: nested}))
    matches_nothing = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "y" * 200}
    with pytest.raises(at.CheckpointError, match="may make 201 bytes"):
        FastTokenizer.from_file(written(tmp_path, **{where: matches_nothing}))


def template(single: list[dict[str, Any]], ids: int = 1) -> dict[str, Any]:
    special = {"id": "[X]", "ids": [0] * ids, "tokens": ["a"] * ids}
    return {"type": "TemplateProcessing", "single": single, "pair": [TEXT, {"Sequence": OTHER}],
            "special_tokens": {"[X]": special}}  # fmt: skip


OTHER = {"id": "B", "type_id": 0}
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
MARK = {"SpecialToken": {"id": "[X]", "type_id": 0}}


@pytest.mark.parametrize(
    "processor",
    [
        template([TEXT] * 10_000),
        template([MARK] * 3000 + [TEXT], ids=3000),
        {"type": "Sequence", "processors": [template([TEXT, TEXT])] * 20},
    ],
    ids=["copies of the text", "special tokens", "copies of copies"],
)
def test_templates_that_fill_the_memory_are_refused(
    tmp_path: Path, processor: dict[str, Any], little_memory: Any
) -> None:
    """Some kilobytes make millions of tokens of every text, and the library aborts."""
    with pytest.raises(at.CheckpointError, match=r"post_processor .* may make \d+ tokens"):
        FastTokenizer.from_file(written(tmp_path, post_processor=processor))


def test_templates_of_honest_files_are_not(tmp_path: Path) -> None:
    first = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    processors = [first, template([MARK, TEXT, MARK], ids=2)]
    found = FastTokenizer.from_file(
        written(tmp_path, post_processor={"type": "Sequence", "processors": processors})
    )
    assert len(found.encode("a")) == 5


def test_steps_of_honest_files_are_not(tmp_path: Path) -> None:
    steps = [{"type": "Prepend", "prepend": "\u2581"}, replacing(" ", "\u2581"), {"type": "NFKC"}]
    found = FastTokenizer.from_file(
        written(tmp_path, normalizer={"type": "Sequence", "normalizers": steps})
    )
    assert found.encode("a") == [1]


def test_a_table_of_characters_is_measured() -> None:
    assert growth_of_characters(b"") == 1
    tree = (8).to_bytes(4, "little") + bytes(8)
    assert growth_of_characters(tree + b"ab\0" + b"c" * 500 + b"\0") == 500


def test_endless_pieces_are_refused(tmp_path: Path) -> None:
    model = {"type": "WordLevel", "vocab": {"a" * 9000: 0, "[UNK]": 1}, "unk_token": "[UNK]"}
    with pytest.raises(at.CheckpointError, match="a piece of the tokenizer has 9000 characters"):
        FastTokenizer.from_file(written(tmp_path, model))


@pytest.mark.parametrize(
    "model",
    [
        {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "[UNK]"},
        {"type": "WordPiece", "vocab": {"a": 0}, "unk_token": "[UNK]",
         "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
        {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": None},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [], "unk_token": "[UNK]"},
    ],
    ids=lambda model: model["type"],
)  # fmt: skip
def test_a_vocabulary_without_its_unknown_token(tmp_path: Path, model: dict[str, Any]) -> None:
    found = FastTokenizer.from_file(written(tmp_path, model))
    assert found.encode("a") == [0]
    with pytest.raises(at.CheckpointError, match="cannot be used here"):
        found.encode("zebra")


def test_halves_of_characters_are_our_error(tiny_folder: Path, chat_folder: Path) -> None:
    model = at.load(tiny_folder, memory=16)
    stream = model.stream()
    calls = [
        lambda: model.tokens(HALF), lambda: model.generate(HALF, max_new_tokens=1),
        lambda: model.embed([HALF]), lambda: stream.feed(HALF),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(OURS, match="half of a character"):
            call()
    chat = at.load(chat_folder, memory=64).chat(system=HALF)
    assert chat.send(HALF, 1) is not None


def test_ids_that_are_no_tokens_are_our_error(tiny_folder: Path) -> None:
    model = at.load(tiny_folder)
    for ids in ([-1], [2**40], ["a"]):
        with pytest.raises(OURS):
            model.text(ids)
    assert model.text([10**6]) == ""


@pytest.fixture
def piped(monkeypatch: Any, capsys: Any) -> Any:
    """Run a command with bytes on standard input, as a strict terminal hands them over."""

    def run(*arguments: Any, content: bytes = BROKEN) -> Any:
        stream = io.TextIOWrapper(io.BytesIO(content), encoding="utf-8", errors="strict")
        monkeypatch.setattr(sys, "stdin", stream)
        code = main([str(argument) for argument in arguments])
        return code, capsys.readouterr()

    return run


def test_run_and_chat_read_what_is_not_utf8(
    tiny_folder: Path, chat_folder: Path, piped: Any
) -> None:
    few = ("--memory", "LRA-sum+c=0+chunk=16:64", "--max-new-tokens", "2", "--json")
    code, shown = piped("run", "--model", tiny_folder, *few, "-")
    assert code == 0, shown.err
    assert json.loads(shown.out)["tokens_read"] == len(BROKEN.decode("utf-8", "replace").encode())
    memory = ("--memory", "attendre-causal+chunk=32:64", "--max-new-tokens", "2")
    code, shown = piped("chat", "--model", chat_folder, *memory, content=BROKEN * 2)
    assert code == 0, shown.err
    assert len(shown.out.splitlines()) >= 2


def test_embed_says_what_is_not_utf8(tiny_folder: Path, piped: Any, tmp_path: Path) -> None:
    out = tmp_path / "vectors.jsonl"
    lines = json.dumps({"text": "fine"}).encode() + b"\n" + b'{"text": "\xff"}\n'
    code, shown = piped(
        "embed", "--model", tiny_folder, "--memory", "64", "-", "--out", out, content=lines
    )
    assert "not UTF-8" in shown.err
    assert "Traceback" not in shown.err
    assert code in (0, 1, 2)


def test_a_model_with_a_hostile_tokenizer_loads_or_says_why(
    tiny_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    written(folder, normalizer={"type": "Sequence", "normalizers": [replacing("a", "a" * 999)] * 3})
    with pytest.raises(OURS, match="Use another tokenizer"):
        at.load(folder).tokens("a")
