"""Results on disk: JSON lines of one model and one task that survive a killed process.

The first line says what was measured; every other line is one item of one cell. Batches of whole
lines are appended, and an incomplete last line is removed when the file is opened again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from attendre_core.errors import StateError
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.tasks.task import Score, Scores

__all__ = ["Measured", "ResultStore", "read_results"]

_FORMAT = 1
#: Windows would otherwise translate line ends.
_BINARY = getattr(os, "O_BINARY", 0)


class Measured(NamedTuple):
    """A cell, and its scores by item.

    Examples
    --------
    >>> found = Measured(Cell("MT", 16, 0), {"a": {"loss": 1.0}, "b": {"loss": 2.0}, "c": {}})
    >>> found.column("loss"), found.mean("loss")
    ({'a': 1.0, 'b': 2.0}, 1.5)
    """

    cell: Cell
    scores: dict[str, Score]

    def column(self, name: str) -> dict[str, float]:
        """Return the score called ``name`` by item, for the items that have it."""
        return {item: score[name] for item, score in self.scores.items() if name in score}

    def mean(self, name: str) -> float:
        """Return the mean of the score called ``name``; NaN if no item has it."""
        values = list(self.column(name).values())
        return float(np.mean(values)) if values else math.nan


class ResultStore:
    """A results file, open for appending; use it in a ``with`` statement.

    Parameters
    ----------
    path
        The file; created if missing. None keeps everything in memory.
    identity
        Everything that results depend on, except system, M, N and item: the model, the task and
        its data, S, K. A file with another identity is refused.

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

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self.path = path
        self.identity: dict[str, Any] = json.loads(json.dumps(identity))
        self._cells: dict[Cell, dict[str, Score]] = {}
        self._file = -1
        if path is None:
            return
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _BINARY, 0o644)
        except OSError as error:
            raise StateError(
                f"results: {path} cannot be written ({error.strerror}). Give another folder with "
                "--out."
            ) from error
        try:
            self._lock(path)
            self._open(path)
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
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def done(self, cell: Cell) -> set[str]:
        """Return the names of the items that have been measured in a cell."""
        return set(self._cells.get(cell, ()))

    @property
    def measured(self) -> list[Measured]:
        """All cells with results, in the order of their first result."""
        return [Measured(cell, dict(scores)) for cell, scores in self._cells.items()]

    def append(self, cell: Cell, scores: Scores) -> None:
        """Add the scores of items of a cell; they are on disk when this returns."""
        rounded = {name: _rounded(score) for name, score in scores}
        if self._file >= 0:
            self._write(
                json.dumps({**cell._asdict(), "item": name, **score})
                for name, score in rounded.items()
            )
        self._cells.setdefault(cell, {}).update(rounded)

    # ---------------------------------------------------------------- private

    def _write(self, lines: Iterable[str]) -> None:
        text = "".join(line + "\n" for line in lines).encode()
        try:
            while text:
                text = text[os.write(self._file, text) :]
            os.fsync(self._file)
        except OSError as error:
            raise StateError(
                f"results: {self.path} cannot be written any more ({error.strerror}). Earlier "
                "results are safe: free some space, and the same command continues from them."
            ) from error

    def _lock(self, path: Path) -> None:
        """Refuse a file that another process is writing; the lock ends with the process."""
        try:
            import fcntl
        except ModuleNotFoundError:  # Windows has no such locks
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StateError(
                f"results: {path} is being written by another process. Wait for it, or give "
                "another folder with --out."
            ) from error

    def _open(self, path: Path) -> None:
        text = path.read_bytes()
        whole = text.rfind(b"\n") + 1
        first = json.dumps({"attendre-eval": _FORMAT, **self.identity})
        # A process that was killed at once leaves the beginning of the first line.
        begun = f"{first}\n".encode().startswith(text)
        if not begun:
            # Nothing is written to a file before it is known to be ours.
            identity, measured = read_results(path)
            self._compare(identity)
            self._cells = {each.cell: each.scores for each in measured}
        if whole < len(text):
            os.ftruncate(self._file, whole)
        if not whole:
            self._write([first])

    def _compare(self, stored: dict[str, Any]) -> None:
        differs = [
            f"{name} {stored.get(name)!r}, now {self.identity.get(name)!r}"
            for name in {**stored, **self.identity}
            if stored.get(name) != self.identity.get(name)
        ]
        if differs:
            raise StateError(
                f"results: {self.path} holds results with other settings: "
                f"{'; '.join(differs)[:600]}. Give another folder with --out, or the same "
                "settings; more policies, sizes and items can be added, other settings cannot."
            )


def read_results(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Read a results file: its identity, and the cells in the order of their first item.

    Of two lines about the same item the later one is used; an incomplete last line is ignored.
    """
    try:
        # Bytes, because an incomplete last line may end inside of a character.
        *lines, _ = path.read_bytes().split(b"\n")
        identity = json.loads(lines[0])
        if identity.pop("attendre-eval") != _FORMAT:
            raise ValueError("another format")
        cells: dict[Cell, dict[str, Score]] = {}
        for line in lines[1:]:
            values = json.loads(line)
            cell = Cell(str(values.pop("policy")), int(values.pop("kv")), int(values.pop("q")))
            item = str(values.pop("item"))
            score = {name: float(value) for name, value in values.items()}
            cells.setdefault(cell, {})[item] = score
    except OSError as error:
        raise StateError(f"results: {path} cannot be read ({error.strerror}).") from error
    except (
        *(AttributeError, IndexError, KeyError, TypeError, ValueError),
        *(OverflowError, RecursionError),
    ) as error:
        raise StateError(
            f"results: {path} is not a results file of attendre ({error!r}). Move it away, or "
            "give another folder with --out."
        ) from error
    return identity, [Measured(cell, scores) for cell, scores in cells.items()]


def _rounded(score: Score) -> Score:
    """Round to five decimals and write whole numbers as integers, to keep files small."""
    rounded: Score = {}
    for name, value in score.items():
        rounded[name] = round(value, 5)
        with suppress(OverflowError, ValueError):
            if value == int(value):
                rounded[name] = int(value)
    return rounded
