"""The figures in README and docs are those of the records, and the records those of the code."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attendre_core.cli import build_parser
from attendre_core.cli.demo import plan_of
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.controls import CONTROLS
from attendre_core.evaluation.sweep import Cell, Measured, ResultStore, run_cells
from attendre_core.evaluation.tasks import SYNTHETIC

RESULTS = Path(__file__).parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def writing(beside: dict[str, ModuleType]) -> Any:
    return beside["write_tables"]


@pytest.fixture(scope="module")
def known(writing: Any) -> dict[str, Callable[[], str]]:
    blocks: dict[str, Callable[[], str]] = writing.blocks()
    return blocks


def test_pages_say_what_was_measured(writing: Any, known: dict[str, Callable[[], str]]) -> None:
    for page in writing.PAGES:
        text = (writing.ROOT / page).read_text(encoding="utf-8")
        assert "<!-- begin " in text
        assert text == writing.written(text, known), f"{page}: run docs/results/write_tables.py"


def test_no_block_of_the_study_is_forgotten(
    writing: Any, known: dict[str, Callable[[], str]]
) -> None:
    """All but the long list of what our preset loses without its visible chunk."""
    texts = "".join((writing.ROOT / page).read_text(encoding="utf-8") for page in writing.PAGES)
    shown = {match[2] for match in writing.BLOCK.finditer(texts)}
    assert set(known) - shown == {"losses-plain"}


def test_the_demo_in_the_docs_has_the_rows_of_the_command(beside: dict[str, ModuleType]) -> None:
    """Controls included, in the order in which the command measures them."""
    plan = plan_of(build_parser().parse_args(["demo"]))
    recorded = beside["compact"].read_cells(RESULTS / "demo.jsonl", seed=0)
    assert [cell for _, cell in recorded] == plan.cells
    assert {at for at, _ in recorded} == {("prefix-lm", "look-ahead", "repeat")}
    assert {len(m.scores) for m in recorded.values()} == {plan.tasks[0].limit}
    page = (RESULTS.parent / "evaluation_tables.md").read_text(encoding="utf-8")
    rows = {line.split()[0] for line in page.splitlines() if line.strip()}
    assert {"first-M", "random", "pinned", "attendre", "LFA-1e-3", "LFA-1e-3+c=0"} <= rows
    assert all(f"{name} " in page for name in CONTROLS)


def test_the_numbers_of_the_readme_have_their_caveats(known: dict[str, Callable[[], str]]) -> None:
    """Three, each with the size, the number of items, what it is compared with, and a but."""
    numbers = known["numbers"]().split("\n- ")
    assert len(numbers) == 3
    text, directions, cost = (" ".join(number.split()) for number in numbers)
    assert all(number.count("*But:*") == 1 for number in (text, directions, cost))
    for words in ("M = 128", "24 pieces", "n = 20", "SmolLM2-135M", "full attention"):
        assert words in text
    for words in ("`attendre:512`", "24 documents", "n = 100", "full attention"):
        assert words in directions
    for words in ("1,000,000", "one layer", "one CPU thread", "M = 1,024"):
        assert words in cost


def test_the_numbers_of_the_readme_follow_the_records(
    beside: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other losses the first number is another one."""
    policies, front = beside["policies"], beside["front_numbers"]
    shutil.copytree(policies.HERE, tmp_path / "policies")
    file = tmp_path / "policies" / "stream-smollm2.jsonl"
    before = front.numbers()
    lines = file.read_text(encoding="utf-8").splitlines()
    file.write_text("\n".join(re.sub(r'"loss": \d\.', '"loss": 2.', line) for line in lines) + "\n")
    read = policies.read_record
    monkeypatch.setattr(policies, "read_record", lambda name: read(name, tmp_path / "policies"))
    after = front.numbers()
    assert before.split("\n- ")[1:] == after.split("\n- ")[1:]
    assert re.findall(r"\d+\.\d", before)[:3] != re.findall(r"\d+\.\d", after)[:3]


def test_a_page_that_was_changed_by_hand_is_noticed(writing: Any) -> None:
    known = {"x": lambda: "12 %"}
    page = "a\n<!-- begin x -->\n\n13 %\n\n<!-- end x -->\nb"
    assert writing.written(page, known) == page.replace("13", "12")
    assert writing.written(writing.written(page, known), known) == page.replace("13", "12")


def same(one: Measured, other: Measured) -> None:
    assert one.cell == other.cell
    assert list(one.column("right").values()) == list(other.column("right").values()), one.cell
    for name in ("admitted", "present"):
        assert one.mean(name) == pytest.approx(other.mean(name), abs=1e-4), (one.cell, name)


def measured(place: Any, seed: int, documents: int, cells: list[Cell]) -> list[Measured]:
    model = load_tiny(place.model)
    task = SYNTHETIC[place.task](place.answers, limit=documents, seed=seed)
    with ResultStore(None, {}) as store:
        return run_cells(model, task, task.items(model), cells, store, chunk=16, top_k=16)


def test_the_demo_measures_what_is_recorded(beside: dict[str, ModuleType]) -> None:
    recorded = beside["compact"].read_cells(RESULTS / "demo.jsonl", seed=0)
    names = ("MT", "LFA-0", "LFA-1e-3+c=0", "pinned", "first-M", "closed-book")
    some = [(at, c) for at, c in recorded if c.policy in names and c.kv in (0, 16)]
    assert len(some) == len(names)
    for one in measured(some[0][0], 0, 40, [cell for _, cell in some]):
        same(one, recorded[some[0][0], one.cell])


def test_the_study_is_complete_and_measures_what_is_recorded(
    beside: dict[str, ModuleType],
) -> None:
    study, read = beside["study"], beside["compact"].read_cells
    chosen = read(RESULTS / "choosing.jsonl", study.CHOOSING)
    assert set(chosen) == set(study.choosing_cells())
    plan = study.confirming_cells(chosen)
    assert list(study.confirmed(RESULTS / "confirming.jsonl", plan)) == plan
    first = study.CONFIRMING[0]
    known = read(RESULTS / "confirming.jsonl", first)
    names = ("closed-book", "MT", "LFA-0+softmax+c=-1", "first-M")
    some = [
        (at, cell)
        for at, cell in plan
        if at == ("encoder-decoder", "look-ahead", "single")
        and cell.policy in names
        and cell.kv in (0, 32)
    ]
    assert {cell.policy for _, cell in some} == set(names)
    for one in measured(some[0][0], first, study.DOCUMENTS, [cell for _, cell in some]):
        same(one, known[some[0][0], one.cell])
