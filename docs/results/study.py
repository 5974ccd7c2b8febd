"""The study behind our presets: choose on some documents, confirm on others.

``python -m attendre_core.evaluation.study FOLDER`` measures both parts and writes a line for each
cell as soon as it is there; run it again and it goes on where it stopped.

First, on the documents of one seed, every policy of the paper at every c of a sweep, and the
candidates for our own preset. Then, on the documents of other seeds, every policy at the c that
was best for it in the first part, and at the paper's, beside everything that has no c to choose.
All figures of the second part come from documents that chose nothing.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Literal

import numpy as np

from attendre_core.cli.arguments import Parser
from attendre_core.evaluation.accuracy import Outcome
from attendre_core.evaluation.grid import SIZELESS, Cell, Grid, Measured
from attendre_core.evaluation.records import read_records
from attendre_core.evaluation.resuming import measure_missing
from attendre_core.evaluation.systems import CONTROLS, PAPER_SIGMAS
from attendre_core.evaluation.tasks import TASKS
from attendre_core.evaluation.tiny.recipe import MODELS
from attendre_core.presets import OTHER_PRESETS

__all__ = [
    "CHOOSING",
    "CONFIRMING",
    "SWEEP",
    "best_sigmas",
    "choosing_cells",
    "confirmed",
    "confirming_cells",
    "papers_sigmas",
]

#: The sweep of c.
SWEEP = (-1.0, 0.0, 1.0)
#: Sizes M and N in chunks of 16: queries that attend at once, and queries that wait.
AT_ONCE = ((16, 0), (32, 0), (64, 0))
WAITING = ((32, 16), (64, 32), (128, 64))
#: Those among them on which c is chosen.
CHOICE = ((32, 0), (64, 0), (32, 16), (64, 32))
#: What ranks entries by attention, and what by use.
ATTENTIVE = ("LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3")
BY_USE = ("LRU", "LFU")
#: Our preset without the visible chunk, so that it holds M entries like the paper's.
PLAIN = "softmax-LFA-0"
#: Candidates for our own preset, each at c = -1. The last three came later: on the documents of the
#: second part H2O had done better than the first four, and it differs from them in just this.
CANDIDATES = (
    PLAIN,
    "softmax-LFA-1e-3",
    "hold-LFA-0",
    "softmax-hold-LFA-0",
    "visible-softmax-LFA-0",
    "per-head-softmax-LFA-0",
    "visible-per-head-softmax-LFA-0",
)
#: The documents to choose on, and those to confirm on, a seed after the other.
CHOOSING = Grid(documents=32, seed=1)
CONFIRMING = tuple(Grid(documents=32, seed=seed) for seed in (2, 3, 4))


def places() -> list[tuple[str, str, str]]:
    """Return all models, tasks and kinds of answers."""
    return list(product(MODELS, TASKS, ("repeat", "single")))


def papers_sigmas(model: str, name: str) -> float | Literal["paper"]:
    """Return the c that the paper would use: ``"paper"`` where it names one, else 1."""
    return "paper" if model == "prefix-lm" and name in PAPER_SIGMAS else 1.0


def choosing_cells() -> list[Cell]:
    """List the cells of the first part, the candidates first."""
    found = []
    for place in places():
        for name, size in product(CANDIDATES, WAITING):
            found.append(_cell(place, name, size, -1.0))
    for place in places():
        for name, size in product(ATTENTIVE + BY_USE, CHOICE):
            every = dict.fromkeys((*SWEEP, papers_sigmas(place[0], name)))
            found += [_cell(place, name, size, sigmas) for sigmas in every]
    for place in places():
        for name, size in product(("MT", "AS", "first-M"), CHOICE):
            found.append(_cell(place, name, size, None))
    return found


def best_sigmas(chosen: Iterable[Measured]) -> dict[tuple[str, str, str, str, bool], float]:
    """Return the c of the sweep with the most right answers over the sizes of the first part.

    One c for each place (model, task, answers) and system, and for whether queries wait. Of
    equals, the one in the middle of the sweep, then the lower one.
    """
    right: dict[tuple[str, str, str, str, bool], dict[float, int]] = {}
    for m in chosen:
        c = m.cell.sigmas
        if c is None or c == "paper" or (m.cell.kv_size, m.cell.q_size) not in CHOICE:
            continue
        of_c = right.setdefault((*m.cell[:4], m.cell.q_size > 0), {})
        of_c[c] = of_c.get(c, 0) + int(m.outcome.right.sum())
    return {key: max(found, key=lambda c: (found[c], -abs(c), -c)) for key, found in right.items()}


def confirming_cells(chosen: Iterable[Measured]) -> list[Cell]:
    """List the cells of the second part, with the c that was best in the first, and the paper's."""
    best = best_sigmas(chosen)
    found = []
    for place in places():
        found += [_cell(place, name, (0, 0), None) for name in SIZELESS]
        found += [_cell(place, name, (256, 0), None) for name in ("MT", "AS")]
        # Without an encoder it is MT.
        others = [name for name in OTHER_PRESETS if (name, place[0]) != _NO_CROSS]
        sized = [name for name in CONTROLS if name not in SIZELESS]
        for size in WAITING + AT_ONCE:
            for name in ("MT", "AS", *others, "attendre", *sized):
                found.append(_cell(place, name, size, None))
            found.append(_cell(place, PLAIN, size, -1.0))
            for name in ATTENTIVE + BY_USE:
                own = best[(*place, name, size[1] > 0)]
                papers = papers_sigmas(place[0], name) if name in ATTENTIVE else own
                found += [
                    _cell(place, name, size, sigmas) for sigmas in dict.fromkeys((own, papers))
                ]
    return found


_NO_CROSS = ("Unlimiformer", "prefix-lm")


def confirmed(file: Path, cells: Sequence[Cell]) -> list[Measured]:
    """Return the second part: each cell over the documents of all seeds that are complete."""
    parts: list[dict[Cell, Outcome]] = []
    for grid in CONFIRMING:
        part = {m.cell: m.outcome for m in read_records(file, grid.seed)}
        if all(cell in part for cell in cells):
            parts.append(part)
    return [
        Measured(
            cell, Outcome(*map(np.concatenate, zip(*(part[cell] for part in parts), strict=True)))
        )
        for cell in (cells if parts else ())
    ]


def _cell(place: tuple[str, str, str], name: str, size: tuple[int, int], sigmas: object) -> Cell:
    return Cell(*place, name, *size, sigmas)  # type: ignore[arg-type]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both parts."""
    parser: argparse.ArgumentParser = Parser(
        prog="python -m attendre_core.evaluation.study", description=__doc__
    )
    parser.add_argument("folder", help="where choosing.jsonl and confirming.jsonl are or will be")
    parser.add_argument("--backend", default="numpy", help="array library to compute with (numpy)")
    arguments = parser.parse_args(argv)
    folder = Path(arguments.folder)
    folder.mkdir(parents=True, exist_ok=True)
    grid = replace(CHOOSING, backend=arguments.backend)
    chosen = measure_missing(folder / "choosing.jsonl", choosing_cells(), grid, "choosing")
    cells = confirming_cells(chosen)
    for number, grid in enumerate(CONFIRMING, 1):
        words = f"confirming, {number} of {len(CONFIRMING)}"
        own = replace(grid, backend=arguments.backend)
        measure_missing(folder / "confirming.jsonl", cells, own, words)
    return 0


if __name__ == "__main__":
    sys.exit(main())
