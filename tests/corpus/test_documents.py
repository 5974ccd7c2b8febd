"""Documents are found where they are, and nothing is left out silently."""

from __future__ import annotations

import io
import os
import sys

import pytest

from attendre_core.corpus import Document, Documents
from attendre_core.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, data in {
        "docs/b.txt": b"\xef\xbb\xbfSecond.\n",
        "docs/a/deep.md": "Fürst, первый".encode(),
        "docs/a/image.png": b"\x89PNG\0\0",
        "docs/a/blank.txt": b" \n",
        "docs/latin.txt": b"caf\xe9",
        "docs/.git/config": b"text",
        "docs/out.jsonl.journal": b'{"id": 1}',
        "rows.jsonl": b'{"id": 7, "text": "One."}\n\n{"text": "Two."}\n[1]\n{"text": 3}\nno\n'
        b'{"id": 7, "text": "Again."}\n{"text": "\\ud800"}\n{"text": "Last."}',
        "lines.txt": b"eins\r\nzwei\n\xff\n\ndrei",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def notes(found):
    return {str(note) for note in found}


def test_a_folder_gives_its_texts_and_says_what_it_leaves_out(folder):
    # Once, although it is named twice; what is being written is none of the documents.
    found = Documents(["docs", "docs/b.txt"], without=[folder / "docs/out.jsonl.journal"])
    assert found.total == 5
    assert list(found) == [
        Document("docs/b.txt", "Second.\n", "docs/b.txt"),
        Document("docs/a/deep.md", "Fürst, первый", "docs/a/deep.md"),
    ]
    assert notes(found.skipped) == {
        "docs/.git: hidden", "docs/a/image.png: binary", "docs/a/blank.txt: empty"
    }  # fmt: skip
    assert notes(found.problems) == {"docs/latin.txt: not UTF-8 (byte 3)"}
    assert len(list(found)) == 2
    assert len(found.problems) == 1, "each pass counts anew"


def test_files_that_were_named_must_be_readable(folder):
    (folder / "dangling").symlink_to("nowhere")
    found = Documents(["docs/a/image.png", "none.txt", "dangling", os.devnull, "docs/b.txt"])
    assert [document.name for document in found] == ["docs/b.txt"]
    assert notes(found.problems) == {
        "docs/a/image.png: binary", "none.txt: there is no such file", "dangling: not a file",
        f"{os.devnull}: not a file",
    }  # fmt: skip


def test_a_file_without_permission_does_not_stop_the_others(folder, monkeypatch):
    # Even root's files can fail: the disk, a network.
    def opened(path, *arguments):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("pathlib.Path.open", opened)
    found = Documents(["docs/b.txt", "-"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("typed"))
    assert list(found) == [Document("-", "typed", "-")]
    assert notes(found.problems) == {"docs/b.txt: Permission denied"}


def test_json_lines(folder):
    found = Documents(["rows.jsonl"])
    assert found.total is None
    assert list(found) == [
        Document(name, text, "rows.jsonl")
        for name, text in (("7", "One."), ("rows.jsonl:3", "Two."), ("rows.jsonl:9", "Last."))
    ]
    assert [note.name for note in found.problems] == [
        *(f"rows.jsonl:{number}" for number in (4, 5, 6)), "7", "rows.jsonl:8"
    ]  # fmt: skip
    assert notes(found.skipped) == {"rows.jsonl:2: empty"}


def test_a_field_makes_lines_of_any_input_json(folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"body": "One."}\n{"text": "Two."}\n'))
    found = Documents(["-"], field="body")
    assert list(found) == [Document("-:1", "One.", "-")]
    (note,) = found.problems
    assert "'body'" in note.reason
    assert "--field" in note.reason


def test_lines(folder):
    found = Documents(["lines.txt"], lines=True)
    assert [document.text for document in found] == ["eins", "zwei", "drei"]
    assert [document.name for document in found] == [f"lines.txt:{n}" for n in (1, 2, 5)]
    assert notes(found.problems) == {"lines.txt:3: not UTF-8 (byte 0)"}


@pytest.mark.skipif(sys.platform != "linux", reason="names are Unicode elsewhere")
def test_a_file_name_may_be_any_bytes(folder):
    with open(os.fsencode(folder) + b"/docs/\xff.txt", "w") as file:  # noqa: PTH123 - bytes
        file.write("Here.")
    (document,) = (d for d in Documents(["docs"]) if d.text == "Here.")
    assert document.name == "docs/\N{REPLACEMENT CHARACTER}.txt"


def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch):
    """As of a variable that is not set; it would read whatever is there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("private")
    with pytest.raises(ConfigError, match="is empty. Write '.'"):
        list(Documents([""]))
    assert [document.name for document in Documents(["."])] == ["a.txt"]
