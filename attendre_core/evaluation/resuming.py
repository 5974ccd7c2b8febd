"""Long measurements that can be interrupted: what a file already holds is not measured again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attendre_core.evaluation.grid import Cell, Grid, Measured, run_cells
from attendre_core.evaluation.records import read_records, write_records
from attendre_core.progress import progress_bar

__all__ = ["measure_missing"]


def measure_missing(
    file: Path | None, cells: Sequence[Cell], grid: Grid, words: str
) -> list[Measured]:
    """Measure those cells that a file does not hold yet, and return all of them in order.

    Parameters
    ----------
    file
        Gets a line for each cell as soon as it is measured; None keeps nothing.
    cells
        What is wanted.
    grid
        Documents, chunk, top K and library. A line of the file counts only if it has the same
        number of documents and the same seed.
    words
        For the progress bar.

    Examples
    --------
    >>> grid = Grid(systems=("closed-book",), documents=2)
    >>> [m.cell.system for m in measure_missing(None, grid.cells(), grid, "reading")]
    ['closed-book']
    """
    known: dict[Cell, Measured] = {}
    if file is not None and file.is_file():
        found = read_records(file, grid.seed)
        known = {m.cell: m for m in found if m.outcome.right.size == grid.documents}
    missing = [cell for cell in cells if cell not in known]
    bar = progress_bar(len(cells), words, " cells")
    bar.update(len(cells) - len(missing))
    try:
        for one in run_cells(missing, grid):
            if file is not None:
                write_records(file, [one], grid.seed)
            known[one.cell] = one
            bar.update()
    finally:
        bar.close()
    return [known[cell] for cell in cells]
