"""A progress bar for long runs, drawn by tqdm if it is installed."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

__all__ = ["progress_bar"]

#: Minimum number of seconds between two redraws, and between two lines in a file.
_PAUSE, _LINE_PAUSE = 0.2, 10.0


class _Silent:
    """A bar that prints nothing."""

    def update(self, count: int = 1) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Plain:
    """A one-line counter with an estimate of the remaining time, used without tqdm."""

    def __init__(self, total: int | None, label: str, unit: str, out: TextIO) -> None:
        self.total, self.label, self.unit, self.out = total, label, unit, out
        self.done = 0
        self.shown = time.monotonic()
        #: When the first part was done, and how large it was. It says nothing about the rest:
        #: libraries are loaded and code is compiled in its time.
        self.first: tuple[float, int] | None = None
        self.width = 0

    def update(self, count: int = 1) -> None:
        """Add ``count``; the line is redrawn at most every `_PAUSE` seconds."""
        now = self._count(count)
        if now - self.shown < _PAUSE and (self.total is None or self.done < self.total):
            return
        self.shown = now
        self._write(self._line(now))

    def _count(self, count: int) -> float:
        """Add ``count``, and return the time."""
        self.done += count
        now = time.monotonic()
        if self.first is None and self.done:
            self.first = now, self.done
        return now

    def _line(self, now: float) -> str:
        if self.total is None:
            return f"{self.label}: {self.done}{self.unit}"
        line = f"{self.label}: {self.done}/{self.total}{self.unit}"
        since, before = self.first or (now, self.done)
        if self.done == before and self.done < self.total:
            return line
        left = (now - since) / max(self.done - before, 1) * (self.total - self.done)
        minutes, seconds = divmod(round(left), 60)
        return f"{line}, {minutes}:{seconds:02d} left"

    def close(self) -> None:
        """Erase the line."""
        self._write("")
        self.out.write("\r")
        self.out.flush()

    def _write(self, line: str) -> None:
        self.out.write("\r" + line.ljust(self.width))
        self.out.flush()
        self.width = len(line)


class _Lines(_Plain):
    """A line every `_LINE_PAUSE` seconds, for files and pipes; short work prints nothing."""

    def update(self, count: int = 1) -> None:
        """Add ``count``, and print a line if the last one is long ago."""
        now = self._count(count)
        if now - self.shown >= _LINE_PAUSE:
            self.shown = now
            self.out.write(f"{self._line(now)}\n")
            self.out.flush()

    def close(self) -> None:
        """Leave the lines where they are."""


def progress_bar(
    total: int | None, label: str, unit: str, show: bool | None = None, *, lines: bool = False
) -> Any:
    """Return a progress bar on stderr, with ``update(count)`` and ``close()``.

    Parameters
    ----------
    total
        The count at which the work is done; None if nobody knows it.
    label, unit
        Shown before and after the count, as in ``"reading"`` and ``" tokens"``.
    show
        True always shows the bar, False never does; None shows it if stderr is a terminal.
    lines
        True prints a line now and then if stderr is not a terminal, as a command does.

    Examples
    --------
    >>> bar = progress_bar(3, "reading", " tokens", show=False)
    >>> bar.update(2)
    >>> bar.close()
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        shown = lines and show is None
        return _Lines(total, label, unit, sys.stderr) if shown else _Silent()
    # A bar is redrawn, for which it needs what the stream of a command keeps from a terminal.
    out = getattr(sys.stderr, "stream", sys.stderr)
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return _Plain(total, label, unit, out)
    return tqdm(total=total, desc=label, unit=unit, leave=False, file=out)
