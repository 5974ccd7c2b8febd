"""What names, messages and texts of others can do to a terminal: nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from attendre_core.cli import main
from attendre_core.cli.terminal import Terminal, harmless_streams

ESCAPES = {
    "a colour": "\x1b[31m",
    "clear the screen": "\x1b[2J\x1b[H",
    "a link": "\x1b]8;;http://example.org\x07here\x1b]8;;\x07",
    "the clipboard": "\x1b]52;c;cm0gLXJmIH4=\x07",
    "the title": "\x1b]0;title\x1b\\",
    "C1 controls": "\x9b2J \x9d52;c;eA==\x9c \x90q\x9c \x85",
    "back to the beginning of the line": "safe\rdanger",
    "a deletion": "abc\b\b\b\x7fxyz",
    "a bell": "\x07",
    "NUL": "\x00",
    "reversed": "\u202egpj.exe\u202c",
    "isolates": "\u2066a\u2067b\u2068c\u2069",
}
POWERS = {*map(chr, [*range(32), *range(0x7F, 0xA0)]), *"\u202a\u202b\u202c\u202d\u202e"}
POWERS = (POWERS | set("\u2066\u2067\u2068\u2069")) - {"\n", "\t"}

pseudo_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")


def on_a_terminal(script: str, folder: Path, *, errors: bool) -> str:
    """Run a script with a pseudo-terminal as its stdout or stderr; return what is shown."""
    import pty

    ours, theirs = pty.openpty()
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    streams["stderr" if errors else "stdout"] = theirs
    environment = {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        **streams,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, **environment},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            more = os.read(ours, 65536)
        except OSError:  # Linux says so at the end
            break
        if not more:
            break
        shown += more
    os.close(ours)
    process.wait()
    return shown.decode().replace("\r\n", "\n")  # which terminals make of \n


@pseudo_terminal
def test_text_on_a_terminal(tmp_path):
    """Through `print`, as in all commands: our colours are kept, those of others shown."""
    script = f"""
from attendre_core.cli.terminal import Terminal, harmless_streams
with harmless_streams():
    terminal = Terminal()
    for name, escape in {ESCAPES!r}.items():
        print(terminal.paint(name, "green") + ":\\t" + escape + "!")
    print("\\ud800 \u0645\u06cc\u200c\u062e 👩\u200d💻 ünï")
"""
    shown = on_a_terminal(script, tmp_path, errors=False)
    for name in ESCAPES:
        assert f"\x1b[32m{name}\x1b[0m:\t" in shown
    others = shown.replace("\x1b[32m", "").replace("\x1b[0m", "")
    assert not POWERS & set(others)
    assert "\\x1b]52;c;" in others
    assert others.endswith("\\ud800 \u0645\u06cc\u200c\u062e 👩\u200d💻 ünï\n")


@pseudo_terminal
@pytest.mark.parametrize("errors", [True, False])
def test_names_in_the_messages_of_commands(tmp_path, errors):
    """A file, a memory, a module and an option that were named to harm."""
    hostile = "".join(each for name, each in ESCAPES.items() if name != "NUL")
    script = f"""
import sys
from attendre_core.cli import main
hostile = {hostile!r}
for words in (["info", "--memory", hostile], ["run", hostile, "text"], ["info", hostile],
              ["info", "--backend", hostile], ["tag", "--model", hostile, "x"], [hostile]):
    try:
        main(words)
    except SystemExit:
        pass
main(["info", "--memory", "64"])
"""
    shown = on_a_terminal(script, tmp_path, errors=errors)
    ours = shown
    for code in ("1m", "2m", "31m", "32m", "0m"):
        ours = ours.replace(f"\x1b[{code}", "")
    assert not POWERS & set(ours)
    if errors:
        assert shown.count("\\x1b]52;c;") >= 4
        assert "\x1b[31m" not in shown


def test_messages_are_harmless_in_files_too(capsys):
    """Logs are shown on terminals one day."""
    assert main(["info", "--memory", "x\x1b[2J\u202e"]) == 2
    shown = capsys.readouterr().err
    assert "\\x1b[2J\\u202e" in shown
    assert not POWERS & set(shown)


def test_what_goes_to_programs_is_kept(capsys):
    with harmless_streams():
        print("a\x1b[0m\r\u202e")
    assert capsys.readouterr().out == "a\x1b[0m\r\u202e\n"


def test_streams_are_put_back(monkeypatch):
    old = sys.stdout, sys.stderr
    with pytest.raises(SystemExit):
        main(["--version"])
    assert (sys.stdout, sys.stderr) == old


def test_characters_that_the_encoding_lacks(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline=""))
    with harmless_streams():
        print("ü", Terminal().paint("colour", "red"), flush=True)
    assert raw.getvalue() == b"\\xfc colour\n"
