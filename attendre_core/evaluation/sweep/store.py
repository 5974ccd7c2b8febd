"""Results on disk: JSON lines that survive a kill, and belong to one model and one task.

The first line says what was measured; every other line is one item of one cell. Lines are written
whole, several at once, and a line that a kill cut short is removed when the file is opened again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from attendre_core.errors import StateError
from attendre_core.evaluation.benchmarks.benchmark import Score, Scores
from attendre_core.evaluation.sweep.plan import Cell

__all__ = ["Record", "ResultStore", "read_results"]

_FORMAT = 1
#: Some systems would write line ends of their own.
_BINARY = getattr(os, "O_BINARY", 0)


class Record(NamedTuple):
    """What was measured on one item with one system at one size."""

    cell: Cell
    item: str
    score: Score


class ResultStore:
    """The results file of a sweep, open for more; use it in a ``with`` statement.

    Parameters
    ----------
    path
        The file; made if it is not there.
    identity
        What results depend on besides policy, M, N and item: the model, the task and its data,
        S, K. A file with another identity is refused.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "results.jsonl"
    >>> with ResultStore(file, {"task": "none"}) as store:
    ...     store.append(Cell("MT", 16, 0), [("first", {"exact_match": 1.0})])
    >>> with ResultStore(file, {"task": "none"}) as store:
    ...     store.done(Cell("MT", 16, 0))
    {'first'}
    """

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._done: dict[Cell, set[str]] = {}
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
        except OSError as error:
            raise StateError(
                f"eval: {path} cannot be written ({error.strerror}). Give another folder with "
                "--out."
            ) from error
        try:
            self._lock()
            self._open()
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def done(self, cell: Cell) -> set[str]:
        """Return the names of the items that are there."""
        return set(self._done.get(cell, ()))

    @property
    def policies(self) -> list[str]:
        """The policies that have results."""
        return list(dict.fromkeys(cell.policy for cell in self._done))

    def append(self, cell: Cell, scores: Scores) -> None:
        """Write items of a cell; they are on disk when this returns."""
        lines = [
            json.dumps({**cell._asdict(), "item": name, **_rounded(score)})
            for name, score in scores
        ]
        self._write(lines)
        self._done.setdefault(cell, set()).update(name for name, _ in scores)

    # ---------------------------------------------------------------- inside

    def _write(self, lines: Iterable[str]) -> None:
        text = "".join(line + "\n" for line in lines).encode()
        try:
            while text:
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)
        except OSError as error:
            raise StateError(
                f"eval: {self.path} cannot be written any more ({error.strerror}). What was "
                "written before is kept: make room, and the same command goes on there."
            ) from error

    def _lock(self) -> None:
        """Refuse a file that another process writes; the lock ends with the process."""
        try:
            import fcntl
        except ModuleNotFoundError:  # this system has no such locks
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"eval: {self.path} is being written by another process. Wait for it, or give "
                "another folder with --out."
            ) from error

    def _open(self) -> None:
        text = self.path.read_bytes()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):
            os.ftruncate(self._file, whole)
        if not whole:
            self._write([json.dumps({"attendre-eval": _FORMAT, **self.identity})])
            return
        identity, records = read_results(self.path)
        self._compare(identity)
        for record in records:
            self._done.setdefault(record.cell, set()).add(record.item)

    def _compare(self, found: dict[str, Any]) -> None:
        differs = [
            f"{name} {found.get(name)!r}, now {self.identity.get(name)!r}"
            for name in {**found, **self.identity}
            if found.get(name) != self.identity.get(name)
        ]
        if differs:
            raise StateError(
                f"eval: {self.path} holds results of something else: {'; '.join(differs)[:600]}. "
                "Give another folder with --out, or the same settings; more policies, sizes and "
                "questions can be added, other settings cannot."
            )


def read_results(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Read a results file: what was measured, and the records in their order.

    An item that stands there twice counts once, and a line that was cut short not at all.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        header = json.loads(lines[0])
        if header.pop("attendre-eval") != _FORMAT:
            raise ValueError("another format")
        records: dict[tuple[Cell, str], Record] = {}
        for line in lines[1:-1]:
            values = json.loads(line)
            cell = Cell(str(values.pop("policy")), int(values.pop("kv")), int(values.pop("q")))
            item = str(values.pop("item"))
            score = {name: float(value) for name, value in values.items()}
            records[cell, item] = Record(cell, item, score)
    except OSError as error:
        raise StateError(f"eval: {path} cannot be read ({error.strerror}).") from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise StateError(
            f"eval: {path} is no results file of attendre eval ({error!r}). Move it away, or give "
            "another folder with --out."
        ) from error
    return header, list(records.values())


def _rounded(score: Score) -> Score:
    """Keep five decimals, and whole numbers whole: the files stay small."""
    rounded: Score = {}
    for name, value in score.items():
        rounded[name] = round(value, 5)
        with suppress(OverflowError, ValueError):
            if value == int(value):
                rounded[name] = int(value)
    return rounded
