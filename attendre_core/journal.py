"""A journal on disk: JSON lines that survive a killed process.

The first line says what the others depend on. Batches of whole lines are appended, and an
incomplete last line is removed when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from attendre_core.errors import StateError
from attendre_core.files import sync_folder

__all__ = ["Journal", "Words"]

_FORMAT = 1
_LONGEST_FIRST = 2**24
#: Windows would otherwise translate line ends.
_BINARY = getattr(os, "O_BINARY", 0)


class Words(NamedTuple):
    """What a journal is called in messages, and what its user can do.

    Attributes
    ----------
    mark
        The name in the first line by which the file is recognised.
    where
        Who speaks, as in ``"results"``.
    elsewhere
        How to use another file, as in ``"Give another folder with --out"``.
    same
        What may change between two runs, and what may not.
    """

    mark: str
    where: str
    elsewhere: str
    same: str


class Journal:
    """A file of JSON lines, open for appending; use it in a ``with`` statement.

    Parameters
    ----------
    path
        The file; created if missing.
    identity
        Everything that the lines depend on. A file with another identity is refused.
    words
        For messages.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "counted.jsonl"
    >>> words = Words("counted", "count", "Give another file", "Count the same.")
    >>> with Journal(file, {"model": "none"}, words) as journal:
    ...     journal.append([{"n": 1}, {"n": 2}])
    >>> with Journal(file, {"model": "none"}, words) as journal:
    ...     [line["n"] for _, line in journal.lines()]
    [1, 2]
    """

    def __init__(self, path: Path, identity: dict[str, Any], words: Words) -> None:
        self.path, self.words = path, words
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        if path.exists() and not path.is_file():
            raise StateError(f"{words.where}: {path} is no file. {words.elsewhere}.")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
        except OSError as error:
            raise StateError(
                f"{words.where}: {path} cannot be written ({error.strerror}). {words.elsewhere}."
            ) from error
        try:
            self._lock()
            self._open()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; its lock ends."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def append(self, lines: Iterable[dict[str, Any]]) -> None:
        """Add lines; they are on disk when this returns."""
        text = "".join(json.dumps(line) + "\n" for line in lines).encode()
        whole = os.fstat(self._file).st_size
        try:
            while text:
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):  # or the next line would go on behind half of one
                os.ftruncate(self._file, whole)
            raise StateError(
                f"{self.words.where}: {self.path} cannot be written any more ({error.strerror}). "
                "Earlier results are safe: free some space, and the same command continues from "
                "them."
            ) from error

    def lines(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield every line after the first, with the byte at which it begins; one is in memory."""
        with self.path.open("rb") as file:
            place = len(file.readline())
            for line in file:
                yield place, self._parsed(line)
                place += len(line)

    def at(self, places: Iterable[int]) -> Iterator[dict[str, Any]]:
        """Yield the lines that begin at these bytes, in this order."""
        with self.path.open("rb") as file:
            for place in places:
                file.seek(place)
                yield self._parsed(file.readline())

    # ---------------------------------------------------------------- private

    def _lock(self) -> None:
        """Refuse a file that another process is writing; the lock ends with the process."""
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows has no such locks
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"{self.words.where}: {self.path} is being written by another process. Wait for "
                f"it. {self.words.elsewhere} to run both."
            ) from error

    def _open(self) -> None:
        # What is refused is left as it is, with an incomplete last line.
        first = {self.words.mark: _FORMAT, **self.identity}
        whole = _whole_lines(self.path)
        with self.path.open("rb") as file:
            found = file.readline(_LONGEST_FIRST)
            file.seek(whole)
            rest = file.read(2)
        if whole:
            if not found.endswith(b"\n"):
                raise self._foreign("its first line is too long")
            stored = self._parsed(found)
            if stored.pop(self.words.mark, None) != _FORMAT:
                raise self._foreign("its first line is another")
            try:
                self._compare(stored)
            except RecursionError as error:
                raise self._foreign("its first line is nested too deep") from error
            # A system that went down may leave zeros in the place of what was not yet written.
            if not b'{"'.startswith(rest) and rest.strip(b"\0"):
                raise self._foreign("its last line has no end, and is no line of ours")
        elif not f"{json.dumps(first)}\n".encode().startswith(found):
            # A process that was killed at once leaves the beginning of the first line.
            raise self._foreign("its first line has no end")
        if whole < self.path.stat().st_size:
            os.ftruncate(self._file, whole)
        if not whole:
            self.append([first])
            sync_folder(self.path.parent)

    def _compare(self, stored: dict[str, Any]) -> None:
        differs = [
            f"{name} {stored.get(name)!r}, now {self.identity.get(name)!r}"
            for name in {**stored, **self.identity}
            if stored.get(name) != self.identity.get(name)
        ]
        if differs:
            raise StateError(
                f"{self.words.where}: {self.path} holds results with other settings: "
                f"{'; '.join(differs)[:600]}. {self.words.elsewhere}, or the same settings; "
                f"{self.words.same}"
            )

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            found = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._foreign(repr(error)[:200]) from error
        if not isinstance(found, dict):
            raise self._foreign("a line is no object")
        return found

    def _foreign(self, reason: str) -> StateError:
        return StateError(
            f"{self.words.where}: {self.path} is not a results file of attendre ({reason}). Move "
            f"it away. {self.words.elsewhere} to leave it there."
        )


def _whole_lines(path: Path) -> int:
    """Return the length of a file up to the end of its last whole line, read from behind."""
    with path.open("rb") as file:
        place = file.seek(0, os.SEEK_END)
        while place:
            start = max(place - 2**16, 0)
            file.seek(start)
            found = file.read(place - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            place = start
    return 0
