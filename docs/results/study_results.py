"""Both parts of the study, as recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import study
from claims import Table
from compact import Cells, Place, papers_name, read_cells, with_c

from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.intervals import Interval, difference
from attendre_core.evaluation.sweep import Cell, Measured

HERE = Path(__file__).parent
#: Policies that have a c.
SCORED = study.ATTENTIVE + study.BY_USE
_FAMILIES = {with_c(name, c): name for name in SCORED for c in (*study.SWEEP, 1.5, 2.0)}
#: Candidates that neither became our preset nor are compared with it.
_LEFT_OUT = {label_of(name) for name in study.CANDIDATES[1:]} - {"attendre"}


class Study:
    """Both parts, and tables of them by place.

    Attributes
    ----------
    chosen, confirmed
        All cells of the first and of the second part.
    best_c
        The c that was chosen, by place, policy and whether queries wait.
    choice_tables, tables
        The cells of the first and of the second part at the best c, and those without one.
    paper_choice_tables, paper_tables
        The same at the paper's c.
    """

    def __init__(self, folder: Path = HERE) -> None:
        self.chosen = read_cells(folder / "choosing.jsonl", study.CHOOSING)
        plan = study.confirming_cells(self.chosen)
        self.confirmed = study.confirmed(folder / "confirming.jsonl", plan)
        self.best_c = study.best_c(self.chosen)
        self.choice_tables = _by_place(self.chosen, self._has_best_c)
        self.tables = _by_place(self.confirmed, self._has_best_c)
        self.paper_choice_tables = _by_place(self.chosen, _has_papers_c)
        self.paper_tables = _by_place(self.confirmed, _has_papers_c)
        self._gaps: dict[tuple[int, int], Interval] = {}

    def name(self, place: Place, policy: str, q: int) -> str:
        """Return the name of a policy at its best c; that of any other system as it is."""
        c = self.best_c.get((place, policy, q > 0))
        return policy if c is None else with_c(policy, c)

    def at(self, place: Place, policy: str, kv: int, q: int) -> Measured | None:
        """Return a confirmed cell of a system, at its best c if it has one."""
        return self.tables[place].get(Cell(self.name(place, policy, q), kv, q))

    def paper_at(self, place: Place, policy: str, kv: int, q: int) -> Measured | None:
        """Return a confirmed cell of a policy at the paper's c."""
        return self.paper_tables[place].get(Cell(papers_name(place.model, policy), kv, q))

    def mean(
        self,
        policy: str,
        kv: int,
        q: int,
        places: Sequence[str] = (),
        *,
        papers_c: bool = False,
        metric: str = "right",
    ) -> float | None:
        """Return a mean over models and tasks in percent, if all were measured.

        Parameters
        ----------
        places
            Models or tasks; all without.
        """  # fmt: skip
        read = self.paper_at if papers_c else self.at
        cells = [
            read(place, policy, kv, q)
            for place in self.tables
            if not places or {place.model, place.task} & set(places)
        ]
        found = [cell.mean(metric) for cell in cells if cell is not None]
        return 100 * sum(found) / len(found) if found else None

    def gap(self, one: Measured, other: Measured) -> Interval:
        """Return the difference of two confirmed cells, computed once."""
        key = (id(one), id(other))
        if key not in self._gaps:
            first, second = (list(m.column("right").values()) for m in (one, other))
            self._gaps[key] = difference(first, second)
        return self._gaps[key]

    @property
    def documents(self) -> int:
        """Documents behind each confirmed cell."""
        return len(next(iter(self.confirmed.values())).scores)

    def _has_best_c(self, place: Place, cell: Cell) -> bool:
        """Whether a cell has the c that was chosen, or none to choose."""
        name = family(cell.policy)
        return name is None or cell.policy == self.name(place, name, cell.q)


def family(policy: str) -> str | None:
    """Return the policy of the sweep that a name is one c of; None for anything else."""
    return _FAMILIES.get(policy)


def _has_papers_c(place: Place, cell: Cell) -> bool:
    """Whether a cell has the c that the paper would use, or none to choose."""
    name = family(cell.policy)
    return cell.policy != study.PLAIN and (
        name is None or cell.policy == papers_name(place.model, name)
    )


def _by_place(cells: Cells, keep: Callable[[Place, Cell], bool]) -> dict[Place, Table]:
    tables: dict[Place, Table] = {}
    for (place, cell), measured in cells.items():
        if cell.policy not in _LEFT_OUT and keep(place, cell):
            tables.setdefault(place, {})[cell] = measured
    return tables
