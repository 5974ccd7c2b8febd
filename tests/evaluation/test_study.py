"""The study: what it chooses from, what it confirms, and that both are kept apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation import study, system
from attendre_core.evaluation.accuracy import Outcome
from attendre_core.evaluation.grid import Cell, Measured
from attendre_core.evaluation.records import read_records, write_records
from attendre_core.policies import LFA, LRA
from attendre_core.presets import PAPER_PRESETS

PLACE = ("prefix-lm", "look-ahead", "repeat")


def measured(cell: Cell, right: int, of: int = 8) -> Measured:
    flags = np.arange(of) < right
    return Measured(cell, Outcome(flags, np.ones(of), np.ones(of)))


def everything_at_zero() -> list[Measured]:
    return [measured(cell, 1 + (cell.sigmas == 0.0)) for cell in study.choosing_cells()]


def test_the_documents_differ() -> None:
    seeds = [study.CHOOSING.seed, *(grid.seed for grid in study.CONFIRMING)]
    assert len(set(seeds)) == len(seeds)
    assert 0 not in seeds  # the demo's


def test_every_cell_is_listed_once() -> None:
    chosen = everything_at_zero()
    for cells in (study.choosing_cells(), study.confirming_cells(chosen)):
        assert len(set(cells)) == len(cells)
        assert len({cell[:3] for cell in cells}) == 8


def test_c_is_chosen_over_both_sizes() -> None:
    def cell(size: tuple[int, int], c: float) -> Cell:
        return Cell(*PLACE, "LFA-0", *size, c)  # type: ignore[arg-type]

    chosen = [
        measured(cell((32, 16), 0.0), 6), measured(cell((64, 32), 0.0), 2),
        measured(cell((32, 16), 1.0), 5), measured(cell((64, 32), 1.0), 4),
        measured(cell((32, 0), -1.0), 3), measured(cell((32, 0), 1.0), 3),
        measured(cell((128, 64), -1.0), 8),
    ]  # fmt: skip
    assert study.best_sigmas(chosen) == {(*PLACE, "LFA-0", True): 1.0, (*PLACE, "LFA-0", False): -1}


def test_what_is_confirmed_has_the_chosen_c_and_the_controls() -> None:
    cells = study.confirming_cells(everything_at_zero())
    for place in study.places():
        for size in study.AT_ONCE + study.WAITING:
            row: dict[str, list[object]] = {}
            for cell in cells:
                if cell[:3] == place and cell[4:6] == size:
                    row.setdefault(cell.system, []).append(cell.sigmas)
            named = {"prefix-lm": "paper", "encoder-decoder": 1.0}[place[0]]
            assert row["LFA-0"] == [0.0, 1.0]
            assert row["LRA-last"] == [0.0, named]
            assert row["LRU"] == [0.0]
            compared = {*PAPER_PRESETS, "attendre", "H2O", "TOVA", "first-M", "random", "pinned"}
            assert compared <= set(row), (place, size)
        whole = {cell.system for cell in cells if cell[:3] == place and cell.kv_size == 0}
        assert whole == {"full", "no-memory", "closed-book"}


def test_a_c_that_is_both_best_and_the_papers_is_measured_once() -> None:
    chosen = [measured(cell, 1 + (cell.sigmas == 1.0)) for cell in study.choosing_cells()]
    cells = study.confirming_cells(chosen)
    assert len(set(cells)) == len(cells)
    of_lfa = [cell.sigmas for cell in cells if cell[:6] == (*PLACE, "LFA-0", 32, 16)]
    assert of_lfa == [1.0]


def test_only_complete_seeds_count(tmp_path: Path) -> None:
    cells = [Cell(*PLACE, name, 32, 0, None) for name in ("MT", "AS")]  # type: ignore[arg-type]
    first, second = (grid.seed for grid in study.CONFIRMING[:2])
    file = tmp_path / "confirming.jsonl"
    write_records(file, [measured(cell, 3) for cell in cells], first)
    write_records(file, [measured(cells[0], 8)], second)
    assert [m.outcome.right.sum() for m in study.confirmed(file, cells)] == [3, 3]
    write_records(file, [measured(cells[1], 5)], second)
    both = study.confirmed(file, cells)
    assert [(m.outcome.right.sum(), m.outcome.right.size) for m in both] == [(11, 16), (8, 16)]
    assert len(read_records(file, first)) == 2


def test_options_of_policies_have_names() -> None:
    assert system("softmax-LFA-0", 32).memory.policy == LFA(
        0.0,
        system("LFA-0", 32).memory.policy.initial,
        score="softmax",  # type: ignore[attr-defined]
    )
    held = system("softmax-hold-LRA-max", 32, sigmas=1.0).memory.policy
    assert held == LRA("max", score="softmax", hold=True)
    wide = system("visible-per-head-softmax-LFA-0", 32, 16).memory
    assert (wide.present, wide.per_head, wide.policy.score) == ("visible", True, "softmax")  # type: ignore[attr-defined]
    assert system("visible-MT", 32).memory == system("Transformer-XL", 32).memory
    with pytest.raises(ConfigError, match="only LRA and LFA have"):
        system("hold-MT", 32)
    with pytest.raises(ConfigError, match="'softmax-none' is not known"):
        system("softmax-none", 32)


def test_our_preset_is_the_chosen_candidate() -> None:
    ours = system("attendre", 32, 16).memory
    assert ours == system("visible-softmax-LFA-0", 32, 16, sigmas=-1.0).memory
    assert replace(ours, present="compete") == system(study.PLAIN, 32, 16, sigmas=-1.0).memory
