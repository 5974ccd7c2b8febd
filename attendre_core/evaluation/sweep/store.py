"""Results on disk: a journal of one model and one task, a line for each item of each cell."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from attendre_core.errors import StateError
from attendre_core.evaluation.sweep.cells import Cell
from attendre_core.evaluation.tasks.task import Score, Scores
from attendre_core.journal import Journal, Words

__all__ = ["Measured", "ResultStore", "read_results"]

_FORMAT = 1
_FIELDS = {"policy": str, "kv": int, "q": int}
_WORDS = Words(
    mark="attendre-eval",
    where="results",
    elsewhere="Give another folder with --out",
    same="more policies, sizes and items can be added, other settings cannot.",
)


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
        self._journal: Journal | None = None
        if path is None:
            return
        self._journal = Journal(path, identity, _WORDS)
        try:
            self._cells = {each.cell: each.scores for each in read_results(path)[1]}
        except BaseException:
            self._journal.close()
            raise

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._journal is not None:
            self._journal.close()

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
        if self._journal is not None:
            self._journal.append(
                {**cell._asdict(), "item": name, **score} for name, score in rounded.items()
            )
        self._cells.setdefault(cell, {}).update(rounded)


def read_results(path: Path) -> tuple[dict[str, Any], list[Measured]]:
    """Read a results file: its identity, and the cells in the order of their first item.

    Of two lines about the same item the later one is used; an incomplete last line is ignored.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise StateError(f"results: {path} cannot be read: it is no file.")
    try:
        # Bytes, because an incomplete last line may end inside of a character.
        *lines, _ = path.read_bytes().split(b"\n")
        identity = json.loads(lines[0])
        if identity.pop("attendre-eval") != _FORMAT:
            raise ValueError("another format")
        cells: dict[Cell, dict[str, Score]] = {}
        for line in lines[1:]:
            values = json.loads(line)
            cell = Cell(*(_typed(values.pop(name), kind) for name, kind in _FIELDS.items()))
            item = _typed(values.pop("item"), str)
            score = {name: float(_typed(value, (int, float))) for name, value in values.items()}
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


def _typed(value: Any, kind: Any) -> Any:
    """Return a value of a line; refuse one of another type, and texts that cannot be written."""
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{str(value)[:40]!r} is of another type")
    if isinstance(value, str):
        value.encode()
    return value


def _rounded(score: Score) -> Score:
    """Round to five decimals and write whole numbers as integers, to keep files small."""
    rounded: Score = {}
    for name, value in score.items():
        rounded[name] = round(value, 5)
        with suppress(OverflowError, ValueError):
            if value == int(value):
                rounded[name] = int(value)
    return rounded
