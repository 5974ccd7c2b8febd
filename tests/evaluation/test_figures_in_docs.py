"""The figures in README and docs are those of the records, and the records those of the code."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from attendre_core.cli import build_parser
from attendre_core.cli.demo import grid_of
from attendre_core.evaluation import study
from attendre_core.evaluation.grid import Grid, Measured, run_cells
from attendre_core.evaluation.records import read_records
from attendre_core.evaluation.systems import CONTROLS
from attendre_core.evaluation.tables import tables_of, with_interval, with_shares

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def writing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_tables", RESULTS / "write_tables.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.fixture(scope="module")
def known(writing: ModuleType) -> dict[str, Callable[[], str]]:
    blocks: dict[str, Callable[[], str]] = writing.blocks()
    return blocks


def test_pages_say_what_was_measured(
    writing: ModuleType, known: dict[str, Callable[[], str]]
) -> None:
    for page in writing.PAGES:
        text = (writing.ROOT / page).read_text(encoding="utf-8")
        assert "<!-- begin " in text
        assert text == writing.written(text, known), f"{page}: run docs/results/write_tables.py"


def test_no_block_of_the_study_is_forgotten(
    writing: ModuleType, known: dict[str, Callable[[], str]]
) -> None:
    """All but the long list of what our preset loses without its visible chunk."""
    texts = "".join((writing.ROOT / page).read_text(encoding="utf-8") for page in writing.PAGES)
    shown = {match[2] for match in writing.BLOCK.finditer(texts)}
    assert set(known) - shown == {"losses-plain"}


def test_the_demo_in_the_docs_has_the_columns_and_lines_of_the_command() -> None:
    """Controls and both shares included, in the order in which the command prints them."""
    wanted = grid_of(build_parser().parse_args(["demo"])).cells()
    assert [m.cell for m in read_records(RESULTS / "demo.jsonl", seed=0)] == wanted
    (table,) = tables_of(read_records(RESULTS / "demo.jsonl"))
    readme = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    for write in (with_interval, with_shares):
        blocks = table.blocks(write, 100)
        assert {*CONTROLS, "attendre"} <= {w for b in blocks for w in b[0].split()}
        for block in blocks:
            assert "\n".join(block) in readme


def test_a_page_that_was_changed_by_hand_is_noticed(writing: ModuleType) -> None:
    known = {"x": lambda: "12 %"}
    page = "a\n<!-- begin x -->\n\n13 %\n\n<!-- end x -->\nb"
    assert writing.written(page, known) == page.replace("13", "12")
    assert writing.written(writing.written(page, known), known) == page.replace("13", "12")


def same(one: Measured, other: Measured) -> None:
    assert one.cell == other.cell
    assert np.array_equal(one.outcome.right, other.outcome.right), one.cell
    assert one.outcome.admitted.mean() == pytest.approx(other.outcome.admitted.mean(), abs=1e-4)
    assert one.outcome.present.mean() == pytest.approx(other.outcome.present.mean(), abs=1e-4)


def test_the_demo_measures_what_is_recorded() -> None:
    recorded = read_records(RESULTS / "demo.jsonl", seed=0)
    grid = Grid(systems=("MT", "LFA-0"), sizes=((16, 0),), large=())
    assert {m.outcome.right.size for m in recorded} == {grid.documents}
    known = {m.cell: m for m in recorded}
    for measured in run_cells(grid.cells(), grid):
        same(measured, known[measured.cell])


def test_the_study_is_complete_and_measures_what_is_recorded() -> None:
    chosen = read_records(RESULTS / "choosing.jsonl", study.CHOOSING.seed)
    assert {m.cell for m in chosen} == set(study.choosing_cells())
    cells = study.confirming_cells(chosen)
    confirmed = study.confirmed(RESULTS / "confirming.jsonl", cells)
    assert [m.cell for m in confirmed] == cells
    first = study.CONFIRMING[0]
    known = {m.cell: m for m in read_records(RESULTS / "confirming.jsonl", first.seed)}
    some = [c for c in cells if c.model == "encoder-decoder" and c.system in ("closed-book", "MT")]
    for measured in run_cells(some[:2], first):
        same(measured, known[measured.cell])
