"""``attendre chat``: lines in, answers out; on a terminal, in a pipe and as JSON."""

from __future__ import annotations

import builtins
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest

import attendre_core as at
from attendre_core import progress
from attendre_core.cli import main
from attendre_core.zoo.answer import Answer

pytest.importorskip("jinja2")

MEMORY = "attendre-causal+chunk=32:64"
SMALL = ("--memory", MEMORY, "--max-new-tokens", "6")


class Typed(io.StringIO):
    """A terminal on which these lines are typed."""

    def isatty(self):
        return True


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text("The memory forgot what nobody had asked for. " * 6)
    return path


@pytest.fixture
def say(monkeypatch, capsys):
    """Pipe lines into the command; returns what it prints."""

    def piped(folder, lines, *options):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        assert main(["chat", "--model", str(folder), *SMALL, *map(str, options)]) == 0
        return capsys.readouterr().out

    return piped


def test_each_line_is_a_message(chat_folder, book, say):
    chat = at.load(chat_folder, memory=MEMORY).chat(system="Be brief.", pin_system=True)
    chat.read(book.read_text())
    want = [str(chat.send(question, 6)) for question in ("Who?", "Why?")]
    options = ("--file", book, "--system", "Be brief.", "--pin-system")
    assert say(chat_folder, ["Who?", "", "Why?"], *options) == "".join(f"{w}\n" for w in want)
    lines = say(chat_folder, ["Who?", "Why?", "/exit", "never"], *options, "--json").splitlines()
    told = [json.loads(line) for line in lines]
    assert [one["answer"] for one in told] == want
    assert [one["message"] for one in told] == ["Who?", "Why?"]
    assert told[-1]["tokens_read"] == chat.stream.lengths[0]
    assert 0 < told[0]["new_tokens"] <= 6


def test_reading_a_file_is_told_in_lines(chat_folder, book, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_LINE_PAUSE", 0)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
    book.write_text(book.read_text() * 5)
    given = ["--model", str(chat_folder), *SMALL, "--file", str(book)]
    assert main(["chat", *given]) == 0
    shown = capsys.readouterr()
    first, *_, last = [line for line in shown.err.splitlines() if line.startswith("reading: ")]
    assert first.startswith("reading: 256/")
    done, total = last.split()[1].split("/")
    assert done == total
    assert "reading" not in shown.out


def test_a_conversation_is_saved_and_goes_on(chat_folder, say, tmp_path):
    path = tmp_path / "talk.safetensors"
    whole = say(chat_folder, ["Who?", "Why?"])
    first = say(chat_folder, ["Who?", f"/save {path}"])
    assert first + say(chat_folder, ["Why?"], "--restore", path) == whole


def test_on_a_terminal(chat_folder, monkeypatch, capsys, tmp_path):
    """Ctrl-C stops an answer, and at the prompt it ends nothing; Ctrl-D ends."""
    lines = iter(["Who?", KeyboardInterrupt(), "/help", "/save", "Why?", "/reset", "Who?"])
    monkeypatch.setattr(sys, "stdin", Typed())

    def typed(prompt):
        line = next(lines, EOFError())
        if isinstance(line, BaseException):
            raise line
        return line

    shown = []
    step = Answer.__next__

    def interrupted(self):
        piece = step(self)
        shown.append(piece)
        if len(shown) == 2:
            raise KeyboardInterrupt
        return piece

    monkeypatch.setattr(builtins, "input", typed)
    monkeypatch.setattr(Answer, "__next__", interrupted)
    assert main(["chat", "--model", str(chat_folder), *SMALL]) == 0
    out = capsys.readouterr()
    answers = out.out.split("\n")
    assert answers[0] == shown[0], "an interrupted answer shows what came before"
    assert answers[2].startswith(answers[0])
    assert len(answers[2]) > len(answers[0]), "after /reset it starts again, and is not stopped"
    assert out.err.count("/save FILE") >= 3
    assert "started again" in out.err


def test_interrupting_a_real_terminal(chat_folder):
    """The program itself, on a pseudo-terminal: Ctrl-C while it answers, then another message."""
    master, slave = pytest.importorskip("pty").openpty()
    command = [sys.executable, "-m", "attendre_core.cli", "chat", "--model", str(chat_folder)]
    environment = {**os.environ, "TERM": "dumb"}
    # What a shell starts in the background may ignore this signal, and so would what we start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    program = subprocess.Popen(
        [*command, "--memory", MEMORY, "--max-new-tokens", "100000"],
        stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    os.close(slave)
    heard = b""

    def wait_for(mark, after):
        nonlocal heard
        while mark not in heard[after:]:
            heard += os.read(master, 4096)
        return len(heard)

    try:
        wait_for(b"> ", 0)
        for _ in range(2):
            os.write(master, b"Who?\n")
            place = wait_for(b"Who?\r\n", len(heard))
            heard += os.read(master, 4096)  # the answer has begun
            time.sleep(0.05)
            program.send_signal(signal.SIGINT)
            wait_for(b"\n> ", place)
        os.write(master, b"/exit\n")
        assert program.wait() == 0
    finally:
        program.kill()
        program.wait()
        os.close(master)
    assert b"Traceback" not in heard


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--file", "missing.txt"), "--file missing.txt cannot be read"),
        (("--restore", "x", "--system", "y"), "--system does not go with --restore"),
        (("--tokenizer", "missing"), "there is no tokenizer"),
        (("--temperature", "-1"), "temperature is -1"),
    ],
)
def test_errors_are_one_line(chat_folder, options, message, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
    assert main(["chat", "--model", str(chat_folder), *options]) == 2
    assert message in capsys.readouterr().err


def test_what_is_missing_is_named(tiny_folder, chat_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
    assert main(["chat", "--model", str(tiny_folder)]) == 2
    assert "has no chat template" in capsys.readouterr().err
    template = tmp_path / "template.jinja"
    template.write_text("{% for m in messages %}{{ m.content }}\n{% endfor %}")
    options = (*SMALL, "--template", str(template))
    assert main(["chat", "--model", str(tiny_folder), *options]) == 0
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).write_bytes((chat_folder / name).read_bytes())
    (tmp_path / "text.txt").write_text("Who?")
    for command in (["chat"], ["run", str(tmp_path / "text.txt")]):
        capsys.readouterr()
        assert main([*command, "--model", str(bare), *SMALL]) == 2
        shown = capsys.readouterr().err
        assert "tokenizer.json" in shown
        assert "--tokenizer PATH" in shown
        monkeypatch.setattr(sys, "stdin", io.StringIO("Who?\n"))
        found = ["--tokenizer", str(chat_folder)]
        assert main([*command, "--model", str(bare), *SMALL, *found]) == 0
        assert capsys.readouterr().out.strip()
