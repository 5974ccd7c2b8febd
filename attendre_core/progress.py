"""A progress bar for long work: on a terminal, with tqdm if it is installed."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

__all__ = ["progress_bar"]

#: Seconds between two updates that are shown.
_PAUSE = 0.2


class _Silent:
    """A bar that nobody sees."""

    def update(self, count: int = 1) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""


class _Plain:
    """A line that counts, and guesses how long it still takes."""

    def __init__(self, total: int, label: str, unit: str, out: TextIO) -> None:
        self.total, self.label, self.unit, self.out = total, label, unit, out
        self.done = 0
        self.start = self.shown = time.monotonic()
        self.width = 0

    def update(self, count: int = 1) -> None:
        """Count on; the line is written anew now and then."""
        self.done += count
        now = time.monotonic()
        if now - self.shown < _PAUSE and self.done < self.total:
            return
        self.shown = now
        left = (now - self.start) / max(self.done, 1) * (self.total - self.done)
        minutes, seconds = divmod(round(left), 60)
        line = f"{self.label}: {self.done}/{self.total}{self.unit}, {minutes}:{seconds:02d} left"
        self._write(line)

    def close(self) -> None:
        """Wipe the line out."""
        self._write("")
        self.out.write("\r")
        self.out.flush()

    def _write(self, line: str) -> None:
        self.out.write("\r" + line.ljust(self.width))
        self.out.flush()
        self.width = len(line)


def progress_bar(total: int, label: str, unit: str, show: bool | None = None) -> Any:
    """Return a bar on stderr with ``update(count)`` and ``close()``.

    Parameters
    ----------
    show
        True always shows it, False never; None shows it where stderr is a terminal.

    Examples
    --------
    >>> bar = progress_bar(3, "reading", " tokens", show=False)
    >>> bar.update(2)
    >>> bar.close()
    """
    if show is False or (show is None and not sys.stderr.isatty()):
        return _Silent()
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:
        return _Plain(total, label, unit, sys.stderr)
    return tqdm(total=total, desc=label, unit=unit, leave=False)
