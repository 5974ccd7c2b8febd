"""Many systems, sizes and settings, measured on the same documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from attendre_core.evaluation.accuracy import Outcome, measure
from attendre_core.evaluation.intervals import Interval, share
from attendre_core.evaluation.systems import CONTROLS, sigmas_of, system
from attendre_core.evaluation.tasks import TASKS, Document
from attendre_core.evaluation.tiny.models import load_tiny
from attendre_core.presets import OTHER_PRESETS, OWN_PRESETS
from attendre_core.zoo.model import Model

__all__ = ["PAPER_SYSTEMS", "SIZELESS", "Cell", "Grid", "Measured", "run", "run_cells"]

#: The columns of the paper's tables.
PAPER_SYSTEMS = ("MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3")
#: Controls that have no memory whose size could vary.
SIZELESS = ("full", "no-memory", "closed-book")
#: Systems whose policy keeps no scores, or has a c of its own.
_SCORELESS = ("MT", "AS", *CONTROLS, *OTHER_PRESETS, *OWN_PRESETS)

Sigmas = float | Literal["paper"]


class Cell(NamedTuple):
    """What is measured at once.

    Attributes
    ----------
    model, task, answers
        Which model reads what: see `load_tiny` and `attendre_core.evaluation.tasks`.
    system
        A name that `attendre_core.evaluation.system` knows.
    kv_size, q_size
        M and N; 0 for a control without a memory.
    sigmas
        c of the initial score, or ``"paper"``; None where there is none to choose.
    """

    model: str
    task: str
    answers: Literal["repeat", "single"]
    system: str
    kv_size: int
    q_size: int
    sigmas: Sigmas | None


class Measured(NamedTuple):
    """A cell with its outcome."""

    cell: Cell
    outcome: Outcome

    @property
    def accuracy(self) -> Interval:
        """The share of right answers."""
        return share(self.outcome.right)


@dataclass(frozen=True)
class Grid:
    """All combinations of some models, tasks, systems, sizes and initial scores.

    Attributes
    ----------
    models, tasks, answers, systems, sigmas
        As in `Cell`.
    sizes
        Pairs of M and N.
    large
        Pairs that only FIFO and sinks are measured with, to see what size would make up for a
        policy.
    documents, seed
        How many, and which.
    chunk, top_k
        S and K.
    """

    models: Sequence[str] = ("prefix-lm",)
    tasks: Sequence[str] = ("look-ahead",)
    answers: Sequence[Literal["repeat", "single"]] = ("repeat",)
    systems: Sequence[str] = (*PAPER_SYSTEMS, *CONTROLS)
    sizes: Sequence[tuple[int, int]] = ((16, 0), (32, 0), (64, 0), (32, 16), (64, 32))
    large: Sequence[tuple[int, int]] = ((256, 0),)
    sigmas: Sequence[Sigmas] = (0.0,)
    documents: int = 40
    seed: int = 0
    chunk: int = 16
    top_k: int | None = 16
    backend: str = "numpy"
    batch: int = field(default=32, compare=False)

    def cells(self) -> list[Cell]:
        """List what is to be measured, each once.

        Examples
        --------
        >>> Grid(systems=("MT", "full"), sizes=((16, 0),)).cells()[0][3:]
        ('MT', 16, 0, None)
        >>> len(Grid(systems=("AS", "LFA-0"), sizes=((16, 0),), sigmas=(0.0, 1.0)).cells())
        4
        """
        found: dict[Cell, None] = {}
        for model in self.models:
            for task in self.tasks:
                for answers in self.answers:
                    for name, sizes, sigmas in self._columns():
                        for kv, q in sizes:
                            found[Cell(model, task, answers, name, kv, q, sigmas)] = None
        return list(found)

    def _columns(self) -> Iterator[tuple[str, Sequence[tuple[int, int]], Sigmas | None]]:
        for name in self.systems:
            sizes = [(0, 0)] if name in SIZELESS else list(self.sizes)
            if name in ("MT", "AS"):
                sizes += [size for size in self.large if size not in sizes]
            for sigmas in (None,) if name in _SCORELESS else self.sigmas:
                yield name, sizes, sigmas


def run(grid: Grid) -> Iterator[Measured]:
    """Measure the cells one after the other.

    Examples
    --------
    >>> small = Grid(systems=("closed-book",), documents=2)
    >>> [measured.cell.system for measured in run(small)]
    ['closed-book']
    """
    yield from run_cells(grid.cells(), grid)


def run_cells(cells: Iterable[Cell], grid: Grid) -> Iterator[Measured]:
    """Measure given cells, with documents, chunk, top K and library of a grid."""
    models: dict[str, Model] = {}
    documents: dict[tuple[str, Literal["repeat", "single"]], list[Document]] = {}
    for cell in cells:
        if cell.model not in models:
            models[cell.model] = load_tiny(cell.model, backend=grid.backend)
        where = (cell.task, cell.answers)
        if where not in documents:
            task = TASKS[cell.task](cell.answers)
            documents[where] = list(task.documents(grid.seed, grid.documents, chunk=grid.chunk))
        sized = system(
            cell.system,
            max(cell.kv_size, grid.chunk),
            cell.q_size,
            chunk=grid.chunk,
            top_k=None if grid.top_k is None else min(grid.top_k, cell.kv_size or grid.top_k),
            sigmas=sigmas_of(cell.system, cell.sigmas or 0.0, model=cell.model),
        )
        outcome = measure(models[cell.model], documents[where], sized, batch=grid.batch)
        yield Measured(cell, outcome)
