"""``attendre run``: a file goes in, a text and a summary come out."""

from __future__ import annotations

import io
import json

import pytest

from attendre_core.cli import main

TEXT = "Once upon a time there was a memory that forgot what it did not need. " * 40
SMALL = ("--kv", "64", "--chunk", "16", "--max-new-tokens", "6")


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def answer(capsys, *arguments):
    assert main(["run", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_continues_a_file_and_says_what_that_took(tiny_folder, book, capsys):
    assert main(["run", "--model", str(tiny_folder), *SMALL, str(book)]) == 0
    shown = capsys.readouterr()
    assert shown.out.strip()
    assert f"read {len(TEXT):,} tokens through 2 layers on numpy" in shown.err
    assert "full attention would hold" in shown.err


def test_the_memory_stays_small_and_full_attention_does_not(tiny_folder, book, capsys):
    bounded = answer(capsys, "--model", tiny_folder, *SMALL, book)
    assert bounded["tokens_read"] == len(TEXT)
    assert bounded["kept_per_layer"] == 64
    assert bounded["memory_bytes"] < bounded["full_attention_bytes"]
    full = answer(capsys, "--model", tiny_folder, "--no-memory", *SMALL, book)
    assert full["memory_bytes"] >= full["full_attention_bytes"]


def test_text_so_far_is_what_comes_out_in_the_end(tiny_folder, book, capsys):
    told = answer(capsys, "--model", tiny_folder, *SMALL, book)["text"]
    assert main(["run", "--model", str(tiny_folder), *SMALL, str(book)]) == 0
    assert capsys.readouterr().out == told + "\n"


def test_a_question_goes_into_the_template(tiny_folder, book, capsys):
    options = ("--question", "Who forgot?", "--template", "{question} {context}")
    told = answer(capsys, "--model", tiny_folder, *SMALL, *options, book)
    assert told["tokens_read"] == len(TEXT) + len("Who forgot? ")
    assert (
        main(["run", "--model", str(tiny_folder), "--question", "x", "--template", "y", str(book)])
        == 2
    )
    assert "has no {question}" in capsys.readouterr().err


def test_saved_and_restored_is_read_in_one_go(tiny_folder, book, tmp_path, capsys):
    whole = answer(capsys, "--model", tiny_folder, *SMALL, book)
    first, rest = tmp_path / "first.txt", tmp_path / "rest.txt"
    first.write_text(TEXT[:1000])
    rest.write_text(TEXT[1000:])
    state = tmp_path / "state.safetensors"
    answer(capsys, "--model", tiny_folder, *SMALL, "--save", state, first)
    told = answer(capsys, "--model", tiny_folder, *SMALL, "--restore", state, rest)
    assert told == whole


def test_it_reads_standard_input_up_to_a_limit(tiny_folder, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(TEXT))
    told = answer(capsys, "--model", tiny_folder, *SMALL, "--limit", 100, "-")
    assert told["tokens_read"] == 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "no-such-folder", "book"), "no such file or folder"),
        (("--model", "MODEL", "no-such-book"), "cannot be read"),
        (("--model", "MODEL", "--preset", "LFA-x", "book"), "is not known"),
        (("--model", "MODEL", "--kv", "64", "--q", "64", "book"), "q_size < kv_size"),
        (("--model", "MODEL", "--dtype", "int8", "book"), "dtype is 'int8'"),
        (("--model", "MODEL", "--temperature", "-1", "book"), "temperature is -1.0"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(arguments, message, tiny_folder, book, capsys):
    words = [{"MODEL": str(tiny_folder), "book": str(book)}.get(a, a) for a in arguments]
    assert main(["run", *words]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1
