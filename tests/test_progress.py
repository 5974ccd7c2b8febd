"""A bar is seen on terminals only, with or without tqdm."""

from __future__ import annotations

import io
import sys

import pytest

from attendre_core.progress import progress_bar


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
