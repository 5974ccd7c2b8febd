"""A file of spans that survives a killed process: JSON lines, and a mark behind each done file.

::

    {"attendre-tag": 1, "model": ..., "memory": ...}
    {"file": "a.txt", "label": "PER", "text": ..., "start": 3, "end": 15, "score": 0.99}
    {"done": "a.txt", "bytes": 5120, "modified": 1700000000000000000}

What follows the last mark is of a file that is not done; it is removed when the file is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from attendre_core.errors import StateError
from attendre_core.files import sync_folder

__all__ = ["SpanFile"]

_FORMAT = 1
_HEAD, _MARK = b'{"attendre-tag"', b'{"done"'


class SpanFile:
    """A file of spans, open for appending; use it in a ``with`` statement.

    Parameters
    ----------
    path
        Created if missing.
    identity
        What the spans depend on. A file with another identity is refused.
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self._identity = json.loads(json.dumps(identity))
        self._done: dict[str, tuple[int, int]] = {}
        if path.exists() and not path.is_file():
            raise StateError(f"tag: {path} is no file. Give another with --out.")
        try:
            self._file = path.open("a+b")
        except OSError as error:
            raise StateError(
                f"tag: {path} cannot be written ({error.strerror}). Give another file with --out."
            ) from error
        try:
            self._lock()
            self._continue()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> SpanFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):  # what is done is on disk; the rest is written again
            self._file.close()

    def done(self, name: str) -> bool:
        """Whether a file is done; if it has changed since, say so."""
        marked = self._done.get(name)
        if marked is not None and marked != _state(name):
            raise StateError(
                f"tag: {name} has changed since its spans went to {self.path}. Give another file "
                "with --out, or leave it out."
            )
        return marked is not None

    @contextmanager
    def tagging(self, name: str) -> Iterator[Callable[[str], None]]:
        """Hand out what writes a line; the file is done, and on disk, when this ends well."""
        size, modified = _state(name)
        yield self._write
        self._write(json.dumps({"done": name, "bytes": size, "modified": modified}))
        self._sync()

    # ---------------------------------------------------------------- private

    def _write(self, line: str) -> None:
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            raise self._full(error) from error

    def _sync(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._full(error) from error

    def _full(self, error: OSError) -> StateError:
        return StateError(
            f"tag: {self.path} cannot be written any more ({error.strerror}). Files that are done "
            "are safe: free some space, and the same command continues."
        )

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
                f"tag: {self.path} is being written by another process. Wait for it, or give "
                "another file with --out."
            ) from error

    def _continue(self) -> None:
        """Find out what is done, and drop what is not."""
        head = json.dumps({"attendre-tag": _FORMAT, **self._identity})
        self._file.seek(0)
        whole = at = 0
        for number, line in enumerate(self._file):
            at += len(line)
            if number and not line.startswith(_MARK):
                # A system that went down may leave zeros in the place of what was not yet written.
                if not b'{"'.startswith(line[:2]) and line.strip(b"\0"):
                    raise self._foreign()
                continue
            if number == 0 and not (line.startswith(_HEAD) or head.encode().startswith(line)):
                raise self._foreign()
            if not line.endswith(b"\n"):
                break
            try:
                noted = json.loads(line)
                if number:
                    self._done[noted["done"]] = int(noted["bytes"]), int(noted["modified"])
                elif noted.pop("attendre-tag") != _FORMAT:
                    raise ValueError("another format")
            except (KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
                raise self._foreign() from error
            if number == 0:
                self._compare(noted)
            whole = at
        self._file.truncate(whole)
        self._file.seek(whole)
        if not whole:
            self._write(head)
            self._sync()
            sync_folder(self.path.parent)

    def _foreign(self) -> StateError:
        return StateError(
            f"tag: {self.path} is not a file of spans that attendre tag wrote. Move it away, or "
            "give another file with --out."
        )

    def _compare(self, noted: dict[str, Any]) -> None:
        differs = [
            f"{name} {noted.get(name)!r}, now {self._identity.get(name)!r}"
            for name in {**noted, **self._identity}
            if noted.get(name) != self._identity.get(name)
        ]
        if differs:
            raise StateError(
                f"tag: {self.path} holds spans with other settings: {'; '.join(differs)[:600]}. "
                "Give another file with --out, or the same settings; more files can be added."
            )


def _state(name: str) -> tuple[int, int]:
    """Return what tells whether a file has changed."""
    found = Path(name).stat()
    return found.st_size, found.st_mtime_ns
