"""Plans: every cell once, under its canonical name; and measuring only what is missing."""

from __future__ import annotations

import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.sweep import (
    Cell,
    ResultStore,
    cells_of,
    identity_of,
    run_cells,
)
from attendre_core.evaluation.tasks import LookAhead, PastOnly


def test_cells_come_once_and_controls_without_a_size_first():
    sizes = [(64, 0), (64, 32), (32, 0), (32, 16)]
    cells = cells_of(["MT", "LFA-0", "mt"], ["full", "first-M"], sizes)
    assert cells[0] == Cell("full", 0, 0)
    assert len(cells) == len(set(cells)) == 1 + 3 * (2 + 2)
    assert Cell("first-M", 64, 32) in cells


def test_cells_have_canonical_names():
    spelled = cells_of(["lfa-0+C=0+softmax", "LFA-0+softmax+c=0"], [], [(32, 0)])
    assert spelled == [Cell("LFA-0+softmax+c=0", 32, 0)]


def test_sizes_are_not_part_of_a_name():
    for name in ("LFA-0:64", "LFA-0+wait=8"):
        with pytest.raises(ConfigError, match="Write 'LFA-0'"):
            cells_of([name], [], [(32, 0)])


def test_only_what_is_missing_is_measured():
    model, task = load_tiny("prefix-lm"), LookAhead(limit=3)
    cells = cells_of(["MT"], ["closed-book"], [(16, 0)])
    counts: list[tuple[str, int]] = []

    def note(cell: Cell, count: int) -> None:
        counts.append((cell.policy, count))

    def run(number: int, store: ResultStore) -> list:
        items = LookAhead(limit=number).items(model)
        return run_cells(
            model, task, items, cells, store, chunk=16, top_k=16, batch=2, on_items=note
        )

    with ResultStore(None, identity_of(model, "prefix-lm", task, 16, 16)) as store:
        assert [len(found.scores) for found in run(3, store)] == [3, 3]
        assert counts == [("closed-book", 2), ("MT", 2), ("closed-book", 1), ("MT", 1)]
        counts.clear()
        few = run(2, store)
        assert counts == []
        assert [list(found.scores) for found in few] == [["document-0", "document-1"]] * 2
        assert [found.cell for found in few] == cells
        run(4, store)
        assert counts == [("closed-book", 1), ("MT", 1)]


def test_the_identity_says_what_results_depend_on():
    model = load_tiny("prefix-lm")
    found = [
        identity_of(model, "prefix-lm", task, chunk, 16)
        for task, chunk in (
            (LookAhead(), 16), (LookAhead("single"), 16), (LookAhead(seed=1), 16),
            (PastOnly(), 16), (LookAhead(chunk=8), 8),
        )
    ]  # fmt: skip
    assert all(one != other for i, one in enumerate(found) for other in found[:i])
    assert found[0] == identity_of(model, "prefix-lm", LookAhead(limit=5), 16, 16)
