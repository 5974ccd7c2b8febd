"""The study: what it chooses from, what it confirms, and that both are kept apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attendre_core.evaluation import system
from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.sweep import Cell, Measured
from attendre_core.presets import PAPER_PRESETS


@pytest.fixture(scope="module")
def study(beside: dict[str, ModuleType]) -> Any:
    return beside["study"]


@pytest.fixture(scope="module")
def compact(beside: dict[str, ModuleType]) -> Any:
    return beside["compact"]


@pytest.fixture
def place(compact: Any) -> Any:
    return compact.Place("prefix-lm", "look-ahead", "repeat")


def measured(cell: Cell, right: int, of: int = 8, seed: int = 1) -> Measured:
    shares = {"admitted": 1.0, "present": 1.0}
    return Measured(cell, {f"{seed}:{i}": {"right": float(i < right), **shares} for i in range(of)})


def everything_at(study: Any, option: str) -> Any:
    """The first part, in which the names with one option are best."""
    return {
        (at, cell): measured(cell, 1 + cell.policy.endswith(option))
        for at, cell in study.choosing_cells()
    }


def test_the_documents_differ(study: Any) -> None:
    seeds = [study.CHOOSING, *study.CONFIRMING]
    assert len(set(seeds)) == len(seeds)
    assert 0 not in seeds  # the demo's


def test_every_cell_is_listed_once(study: Any) -> None:
    for plan in (study.choosing_cells(), study.confirming_cells(everything_at(study, "+c=0"))):
        assert len(set(plan)) == len(plan)
        assert len({at for at, _ in plan}) == 8


def test_every_name_is_spelled_as_tables_do(study: Any) -> None:
    for _, cell in study.choosing_cells():
        assert label_of(cell.policy) == cell.policy


def test_c_is_chosen_over_both_sizes(study: Any, place: Any) -> None:
    cells = {
        Cell("LFA-0+c=0", 32, 16): 6, Cell("LFA-0+c=0", 64, 32): 2,
        Cell("LFA-0", 32, 16): 5, Cell("LFA-0", 64, 32): 4,
        Cell("LFA-0+c=-1", 32, 0): 3, Cell("LFA-0", 32, 0): 3,
        Cell("LFA-0+c=-1", 128, 64): 8,
    }  # fmt: skip
    chosen = {(place, cell): measured(cell, right) for cell, right in cells.items()}
    assert study.best_c(chosen) == {(place, "LFA-0", True): 1.0, (place, "LFA-0", False): -1.0}


def test_what_is_confirmed_has_the_chosen_c_and_the_controls(study: Any) -> None:
    plan = study.confirming_cells(everything_at(study, "+c=0"))
    for at in study.places():
        for size in study.AT_ONCE + study.WAITING:
            row = [c.policy for where, c in plan if where == at and (c.kv, c.q) == size]
            papers = {"prefix-lm": "LRA-last+c=2", "encoder-decoder": "LRA-last"}[at.model]
            assert [n for n in row if n.startswith("LFA-0+c=") or n == "LFA-0"] == [
                "LFA-0+c=0", "LFA-0",
            ]  # fmt: skip
            assert [n for n in row if n.startswith("LRA-last")] == ["LRA-last+c=0", papers]
            assert [n for n in row if n.startswith("LRU")] == ["LRU+c=0"]
            plain = {name.partition("+")[0] for name in row}
            compared = {*PAPER_PRESETS, "attendre", "H2O", "TOVA", "first-M", "random", "pinned"}
            assert compared <= plain, (at, size)
        whole = {c.policy for where, c in plan if where == at and c.kv == 0}
        assert whole == {"full", "no-memory", "closed-book"}


def test_a_c_that_is_both_best_and_the_papers_is_measured_once(study: Any, place: Any) -> None:
    chosen = {
        (at, cell): measured(cell, 1 + ("+" not in cell.policy))
        for at, cell in study.choosing_cells()
    }
    plan = study.confirming_cells(chosen)
    assert len(set(plan)) == len(plan)
    names = [c.policy for at, c in plan if at == place and (c.kv, c.q) == (32, 16)]
    assert [n for n in names if n in ("LFA-0", "LFA-0+c=0", "LFA-0+c=-1")] == ["LFA-0"]


def test_only_complete_seeds_count(study: Any, compact: Any, place: Any, tmp_path: Path) -> None:
    plan = [(place, Cell(name, 32, 0)) for name in ("MT", "AS")]
    first, second = study.CONFIRMING[:2]
    file = tmp_path / "confirming.jsonl"
    lines = [compact.line_of(place, first, measured(cell, 3, seed=first)) for _, cell in plan]
    lines.append(compact.line_of(place, second, measured(plan[0][1], 8, seed=second)))
    file.write_text("\n".join(lines) + "\n")
    found = study.confirmed(file, plan)
    assert [sum(m.column("right").values()) for m in found.values()] == [3, 3]
    lines.append(compact.line_of(place, second, measured(plan[1][1], 5, seed=second)))
    file.write_text("\n".join(lines) + "\n")
    both = study.confirmed(file, plan).values()
    assert [(sum(m.column("right").values()), len(m.scores)) for m in both] == [(11, 16), (8, 16)]


def test_our_preset_is_the_chosen_candidate(study: Any) -> None:
    ours = system("attendre", 32, 16).memory
    assert ours == system("LFA-0+softmax+c=-1+visible", 32, 16).memory
    assert replace(ours, present="compete", adapt=False) == system(study.PLAIN, 32, 16).memory


def test_an_interrupted_study_continues(
    study: Any, compact: Any, place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in the raw files is not measured again."""
    monkeypatch.setattr(study, "DOCUMENTS", 2)
    plan = [(place, Cell("MT", 16, 0)), (place, Cell("closed-book", 0, 0))]
    lines = study.measure(tmp_path, plan, 9, "numpy", "test")
    (raw,) = (tmp_path / "raw").iterdir()
    kept = raw.read_text().splitlines(keepends=True)
    assert len(kept) == 1 + 2 * 2
    # As if the process had been killed in the middle of the last line.
    raw.write_text("".join(kept[:-1]) + kept[-1][:30])
    assert study.measure(tmp_path, plan, 9, "numpy", "test") == lines
    assert raw.read_text() == "".join(kept)
