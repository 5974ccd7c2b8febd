"""``attendre tag``: spans of files, folders and standard input, and files that continue."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import attendre_core as at
from attendre_core import progress
from attendre_core.cli import main, tag
from attendre_core.cli.tag_file import SpanFile
from attendre_core.cli.terminal import Terminal

TEXT = "Ada Lovelace met Charles\nBabbage in Zürich, not in New York.\n"
FOUND = [
    ("PER", "Ada Lovelace"),
    ("PER", "Charles\nBabbage"),
    ("LOC", "Zürich"),
    ("LOC", "New York"),
]


@pytest.fixture
def texts(tmp_path, monkeypatch):
    """A folder with texts, a binary file and hidden ones."""
    folder = tmp_path / "texts"
    (folder / "inner").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for name in ("b.txt", "a.txt", "inner/c.log", ".secret", ".hidden/d.txt"):
        (folder / name).write_text(TEXT * 3, encoding="utf-8")
    (folder / "image.png").write_bytes(b"\x89PNG\0" + TEXT.encode())
    monkeypatch.chdir(tmp_path)
    return folder


def run(*arguments, capsys):
    code = main(["tag", *map(str, arguments)])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_text_and_json(word_tagger, texts, capsys):
    captured = run("--model", word_tagger, "texts/a.txt", capsys=capsys)
    assert captured.out.splitlines()[:2] == [
        "texts/a.txt:0-12 PER Ada Lovelace",
        r"texts/a.txt:17-32 PER Charles\nBabbage",
    ]
    assert captured.err.splitlines() == [
        f"12 spans in 1 file, {len(TEXT.encode()) * 3} bytes, memory attendre:512", "PER 6, LOC 6",
    ]  # fmt: skip
    captured = run("--model", word_tagger, "--json", "texts/a.txt", capsys=capsys)
    spans = [json.loads(line) for line in captured.out.splitlines()]
    assert [(span["label"], span["text"]) for span in spans] == FOUND * 3
    whole = TEXT * 3
    assert all(whole[span["start"] : span["end"]] == span["text"] for span in spans)
    assert captured.out.isascii()


def test_progress_goes_to_stderr_in_lines(word_tagger, texts, capsys, monkeypatch):
    plain = run("--model", word_tagger, "texts", capsys=capsys)
    monkeypatch.setattr(progress, "_LINE_PAUSE", 0)
    told = run("--model", word_tagger, "texts", capsys=capsys)
    assert told.out == plain.out
    one = len(TEXT.encode()) * 3
    lines = [line for line in told.err.splitlines() if line.startswith("tagging: ")]
    assert [line.split()[1] for line in lines] == [f"{n * one}/{3 * one}" for n in (1, 2, 3)]


@pytest.mark.parametrize("memory", ["32", "full"])
def test_a_folder_is_walked(word_tagger, texts, capsys, memory):
    captured = run("--model", word_tagger, "--memory", memory, "--json", "texts", capsys=capsys)
    spans = [json.loads(line) for line in captured.out.splitlines()]
    files = ["texts/a.txt", "texts/b.txt", "texts/inner/c.log"]
    assert list(dict.fromkeys(span["file"] for span in spans)) == files
    assert [(span["label"], span["text"]) for span in spans] == FOUND * 9
    assert "1 binary file left out" in captured.err


def test_what_terminals_obey_is_shown_instead(word_tagger, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "Ada \u202e\x1b]0;title\x07 Ada \u202e\x1b \x07 Lovelace \x9b31m"
    (tmp_path / "a\x1b[2J").write_text(text, encoding="utf-8")
    captured = run("--model", word_tagger, "--memory", "full", "a\x1b[2J", capsys=capsys)
    assert not set(captured.out + captured.err) & {"\x1b", "\x07", "\x9b", "\u202e"}
    # BERT drops control characters, so these words are neighbours.
    assert captured.out.splitlines() == [
        r"a\x1b[2J:0-3 PER Ada", r"a\x1b[2J:16-33 PER Ada \u202e\x1b \x07 Lovelace",
    ]  # fmt: skip


def test_a_terminal_that_knows_few_characters():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert Terminal(stream).harmless("Zürich 世\n") == r"Zürich \u4e16\n"


def test_standard_input_is_read_as_it_arrives(word_tagger):
    """The first spans come while the input is still open."""
    command = [sys.executable, "-m", "attendre_core.cli", "tag", "--model", str(word_tagger)]
    child = subprocess.Popen(
        [*command, "--memory", "16", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    guard = threading.Timer(120, child.kill)
    guard.start()
    try:
        child.stdin.write("Ada in London\n" * 20)
        child.stdin.flush()
        assert child.stdout.readline() == "-:0-3 PER Ada\n"
        child.stdin.write("and New York")
        child.stdin.close()
        # Not communicate, which does not see what readline has read ahead.
        out, err = child.stdout.read(), child.stderr.read()
        child.wait()
    finally:
        guard.cancel()
        child.kill()
        child.wait()
        child.stdout.close()
        child.stderr.close()
    assert child.returncode == 0, err
    assert len(out.splitlines()) == 40
    assert out.splitlines()[-1] == "-:284-292 LOC New York"
    assert err.startswith("41 spans in 1 file, 292 bytes")


class TestOut:
    def arguments(self, word_tagger, *more):
        return ["--model", word_tagger, "--memory", "32", "--out", "out.jsonl", *more]

    def test_done_files_are_left_alone(self, word_tagger, texts, capsys):
        arguments = self.arguments(word_tagger, "texts")
        assert "36 spans in 3 files" in run(*arguments, capsys=capsys).out
        before = (texts.parent / "out.jsonl").read_bytes()
        answer = json.loads(run(*arguments, "--json", capsys=capsys).out)
        assert (answer["files"], answer["done_before"], answer["spans"]) == (0, 3, 0)
        assert (texts.parent / "out.jsonl").read_bytes() == before
        head, *lines = lines_of(texts.parent / "out.jsonl")
        assert head["attendre-tag"] == 1
        assert [line["done"] for line in lines if "done" in line] == [
            "texts/a.txt", "texts/b.txt", "texts/inner/c.log",
        ]  # fmt: skip

    def test_it_continues_wherever_it_was_killed(self, word_tagger, texts, capsys):
        """Every prefix of the file that a killed process can leave becomes the same file."""
        arguments, out = self.arguments(word_tagger, "texts"), texts.parent / "out.jsonl"
        run(*arguments, capsys=capsys)
        whole = out.read_bytes()
        places = [0, 1, 40, whole.index(b"\n") + 1, len(whole) - 1]
        marks = [place for place in range(len(whole)) if whole.startswith(b'{"done"', place)]
        for cut in [*places, *(mark + more for mark in marks for more in (0, 3, 200))]:
            out.write_bytes(whole[:cut])
            run(*arguments, capsys=capsys)
            assert out.read_bytes() == whole, f"cut at {cut} of {len(whole)}"

    def test_interrupted(self, word_tagger, texts, capsys, monkeypatch):
        arguments, out = self.arguments(word_tagger, "texts"), texts.parent / "out.jsonl"
        run(*arguments, capsys=capsys)
        whole = out.read_bytes()
        out.unlink()
        given, opened = tag._spans, []

        def interrupted(tagger, pieces):
            opened.append(1)
            for number, span in enumerate(given(tagger, pieces)):
                if len(opened) == 2 and number == 5:
                    raise KeyboardInterrupt
                yield span

        with monkeypatch.context() as patch:
            patch.setattr(tag, "_spans", interrupted)
            assert main(["tag", *map(str, arguments)]) == 130
        assert "1 file of 3 done, and the same command continues" in capsys.readouterr().err
        assert out.read_bytes() != whole
        assert "2 files" in run(*arguments, capsys=capsys).out
        assert out.read_bytes() == whole

    def test_the_file_of_spans_is_not_read(self, word_tagger, texts, capsys):
        arguments = ["--model", word_tagger, "--out", "texts/out.jsonl", "texts"]
        run(*arguments, capsys=capsys)
        assert "0 spans in 0 files" in run(*arguments, capsys=capsys).out

    def test_other_settings_and_changed_files(self, word_tagger, texts, capsys):
        run(*self.arguments(word_tagger, "texts"), capsys=capsys)
        before = (texts.parent / "out.jsonl").read_bytes()

        def refused(words, *arguments):
            assert main(["tag", *map(str, arguments)]) == 2
            assert words in capsys.readouterr().err
            assert (texts.parent / "out.jsonl").read_bytes() == before

        more = self.arguments(word_tagger, "texts", "--aggregation", "simple")
        refused("aggregation 'first', now 'simple'", *more)
        refused("standard input cannot be read again", *self.arguments(word_tagger, "-"))
        (texts / "a.txt").write_text("Ada")
        refused("texts/a.txt has changed since", *self.arguments(word_tagger, "texts"))

    @pytest.mark.parametrize("content", [b"my notes\n", b'{"attendre-tag": 2}\n', b"\0\xff" * 9])
    def test_files_of_others_are_kept(self, word_tagger, texts, capsys, content):
        (texts.parent / "out.jsonl").write_bytes(content)
        assert main(["tag", *map(str, self.arguments(word_tagger, "texts"))]) == 2
        assert "is not a file of spans" in capsys.readouterr().err
        assert (texts.parent / "out.jsonl").read_bytes() == content

    @pytest.mark.parametrize(
        "lines",
        [
            b'{"done": ' + b"[" * 100_000 + b"\n",
            b'{"done": "a", "bytes": Infinity, "modified": 1}\n',
            b'{"done": [1], "bytes": 1, "modified": 1}\n',
            b"my own notes",
            b"my own notes\n",
        ],
        ids=["deep", "infinite", "a list", "notes cut short", "notes"],
    )
    def test_lines_of_others_are_kept(self, tmp_path, lines):
        file = tmp_path / "out.jsonl"
        with SpanFile(file, {}):
            pass
        content = file.read_bytes() + lines
        file.write_bytes(content)
        with pytest.raises(at.StateError, match="is not a file of spans"):
            SpanFile(file, {})
        assert file.read_bytes() == content

    def test_one_process_at_a_time(self, tmp_path):
        pytest.importorskip("fcntl")
        with (
            SpanFile(tmp_path / "out.jsonl", {}),
            pytest.raises(at.StateError, match="being written by another process"),
        ):
            SpanFile(tmp_path / "out.jsonl", {})


class TestMistakes:
    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["nowhere.txt"], "nowhere.txt does not exist"),
            (["empty"], "there is no text file in empty"),
            (["a.txt", "--memory", "MT"], "the size is missing"),
            (["a.txt", "--out", "no/such/folder/x"], "no/such/folder/x cannot be written"),
        ],
    )
    def test_one_line_and_exit_code_2(
        self, arguments, words, word_tagger, tmp_path, monkeypatch, capsys
    ):
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        (tmp_path / "a.txt").write_text("Ada")
        assert main(["tag", "--model", str(word_tagger), *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert words in captured.err
        assert captured.err.count("\n") == 1

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
    def test_a_file_that_cannot_be_read(self, word_tagger, tmp_path, capsys):
        (tmp_path / "a.txt").write_text("Ada")
        (tmp_path / "a.txt").chmod(0)
        assert main(["tag", "--model", str(word_tagger), str(tmp_path / "a.txt")]) == 2
        assert "cannot be read" in capsys.readouterr().err

    def test_a_folder_that_cannot_be_read(self, word_tagger, texts, capsys, monkeypatch):
        """Its files are not left out in silence; this way root sees it, too."""
        scan = os.scandir

        def denied(path):
            if str(path).endswith("inner"):
                raise PermissionError(13, "Permission denied", str(path))
            return scan(path)

        monkeypatch.setattr(os, "scandir", denied)
        assert main(["tag", "--model", str(word_tagger), "texts"]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.endswith("tag: texts/inner cannot be read (Permission denied).\n")


def test_the_guide_prints_what_it_says(word_tagger, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "guides" / "tagging.md").read_text("utf-8")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "ner-model").symlink_to(word_tagger)
    monkeypatch.chdir(tmp_path)
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)), {})
    printed = capsys.readouterr().out
    shown = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    for text in shown:
        assert text in printed, printed
