"""A bar is seen on terminals only, with or without tqdm."""

from __future__ import annotations

import io
import sys

import pytest

from attendre_core import progress
from attendre_core.progress import progress_bar

#: Before fixtures change it.
PAUSE = progress._LINE_PAUSE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(show: bool | None) -> None:
    bar = progress_bar(3, "reading", " cells", show=show)
    for _ in range(3):
        bar.update()
    bar.close()


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize(("out", "show", "seen"), [
    (io.StringIO, None, False), (Terminal, None, True), (Terminal, False, False),
    (io.StringIO, True, True),
])  # fmt: skip
def test_where_it_is_seen(
    out: type[io.StringIO],
    show: bool | None,
    seen: bool,
    installed: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if installed:
        pytest.importorskip("tqdm")
    else:
        monkeypatch.setitem(sys.modules, "tqdm", None)
    stream = out()
    monkeypatch.setattr(sys, "stderr", stream)
    run(show)
    assert bool(stream.getvalue()) == seen
    if seen:
        assert "reading" in stream.getvalue()


def test_the_plain_line_counts_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    run(None)
    lines = stream.getvalue().split("\r")
    assert "reading: 3/3 cells, 0:00 left" in lines
    assert lines[-1] == ""
    assert lines[-2].strip() == ""


def test_a_file_gets_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call each second of a clock that the test holds; the first line after ten seconds."""
    stream, clock = io.StringIO(), iter(range(1000))
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress, "_LINE_PAUSE", PAUSE)
    bar = progress_bar(100, "reading", " tokens", lines=True)
    for _ in range(25):
        bar.update(4)
    bar.close()
    assert stream.getvalue().splitlines() == [
        "reading: 40/100 tokens, 0:15 left", "reading: 80/100 tokens, 0:05 left",
    ]  # fmt: skip


def test_the_first_part_says_nothing_about_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a minute to compile; each of the others takes a second."""
    stream, clock = io.StringIO(), iter([0.0, 60.0, *map(float, range(70, 74))])
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "_LINE_PAUSE", 0.0)
    bar = progress_bar(30, "reading", " tokens", lines=True)
    for count in (10, 10, 1, 4, 5):
        bar.update(count)
    assert stream.getvalue().splitlines() == [
        "reading: 10/30 tokens", "reading: 20/30 tokens, 0:10 left",
        "reading: 21/30 tokens, 0:09 left", "reading: 25/30 tokens, 0:04 left",
        "reading: 30/30 tokens, 0:00 left",
    ]  # fmt: skip


@pytest.mark.parametrize("show", [None, False])
def test_short_work_prints_nothing_into_a_file(
    show: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    bar = progress_bar(3, "reading", " cells", show, lines=True)
    bar.update(3)
    bar.close()
    assert stream.getvalue() == ""
