"""Summaries: means with intervals, differences paired by item, what the controls choose."""

from __future__ import annotations

import numpy as np
import pytest

from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import Cell, Measured, summarise
from attendre_core.evaluation.sweep.summary import estimate, paired, where_reading_helps
from attendre_core.evaluation.tasks import Metric

SCORE, RIGHT = Metric("score", "score"), Metric("right", "right", share=True)


def cell(policy, values, kv=16, q=0, **more):
    scores = {f"item-{i}": {"score": value, **more} for i, value in enumerate(values)}
    return Measured(Cell(policy, kv, q), scores)


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    hard = rng.normal(size=60) * 10
    measured = [cell("MT", hard), cell("LFA-0", hard + 1 + 0.1 * rng.normal(size=60))]
    summary = summarise(measured, [SCORE, RIGHT], "MT")
    first, second = summary.rows
    assert summary.metrics == (SCORE,)
    assert first.gap is None
    # What makes an item hard does not count: the means are uncertain by 5, the gap by 0.05.
    assert second.values["score"].high - second.values["score"].low > 3
    assert second.gap.value == pytest.approx(1, abs=0.05)
    assert 0.9 < second.gap.low < second.gap.high < 1.1


def test_a_half_measured_cell_is_compared_where_both_are():
    measured = [cell("MT", [1.0, 2.0, 3.0]), cell("LFA-0", [2.0, 3.0])]
    row = summarise(measured, [SCORE], "MT").rows[1]
    assert row.items == 2
    assert row.gap == Interval(1.0, 1.0, 1.0)
    others = [Measured(Cell("MT", 16, 0), {name: {"score": 1.0}}) for name in "ab"]
    assert paired(*others, "score") is None


def test_baselines_have_the_size_of_the_row():
    measured = [
        cell("MT", [1.0, 1.0], kv=16), cell("MT", [2.0, 2.0], kv=32),
        cell("LFA-0", [5.0, 5.0], kv=32), cell("full", [9.0, 9.0], kv=0),
    ]  # fmt: skip
    gaps = {row.cell: row.gap for row in summarise(measured, [SCORE], "MT").rows}
    assert gaps[Cell("LFA-0", 32, 0)].value == 3
    assert gaps[Cell("full", 0, 0)] is None
    gaps = {row.cell: row.gap for row in summarise(measured, [SCORE], "full").rows}
    assert gaps[Cell("MT", 16, 0)].value == -8
    single = summarise([measured[0], measured[3]], [SCORE], "MT").rows
    assert single[0].gap.value == 8


def test_at_equal_bytes_the_baseline_holds_as_much_as_the_row():
    measured = [
        cell("MT", [1.0, 1.0], kv=16, bytes=1600.0), cell("H2O", [5.0, 5.0], kv=8, bytes=1580.0),
        cell("MT", [2.0, 2.0], kv=32, bytes=3200.0),
        cell("H2O", [9.0, 9.0], kv=16, q=8, bytes=3190.0),
        cell("AS", [4.0, 4.0], kv=16, bytes=1600.0), cell("LRU", [0.0, 0.0], kv=5, bytes=700.0),
        cell("full", [7.0, 7.0], kv=0, bytes=9e9),
    ]  # fmt: skip
    rows = summarise(measured, [SCORE], "MT", equal_bytes=True).rows
    assert [(row.cell, row.gap and row.gap.value) for row in rows] == [
        (("full", 0, 0), None), (("LRU", 5, 0), None),
        (("MT", 16, 0), None), (("H2O", 8, 0), 4), (("AS", 16, 0), 3),
        (("MT", 32, 0), None), (("H2O", 16, 8), 7),
    ]  # fmt: skip
    # Otherwise the same M and N come first, and bytes only where there is no such baseline.
    measured.append(cell("TOVA", [8.0, 8.0], kv=16, bytes=3200.0))
    for flag, expected in ((False, 7), (True, 6)):
        gaps = {r.cell: r.gap for r in summarise(measured, [SCORE], "MT", equal_bytes=flag).rows}
        assert gaps[Cell("TOVA", 16, 0)].value == expected
        assert gaps[Cell("H2O", 8, 0)].value == 4
    single = [measured[i] for i in (0, 1, 6)]
    rows = summarise(single, [SCORE], "MT", equal_bytes=True).rows
    assert [row.gap and row.gap.value for row in rows] == [6, None, 4]


def test_rows_without_a_size_come_first_then_by_n_and_m():
    measured = [
        cell("MT", [1.0], kv=32, q=16), cell("AS", [1.0], kv=16), cell("MT", [1.0], kv=16),
        cell("MT", [1.0], kv=64), cell("full", [1.0], kv=0),
    ]  # fmt: skip
    rows = summarise(measured, [SCORE], "MT").rows
    assert [row.cell for row in rows] == [
        ("full", 0, 0), ("AS", 16, 0), ("MT", 16, 0), ("MT", 64, 0), ("MT", 32, 16),
    ]  # fmt: skip


def test_where_reading_helps_is_chosen_by_the_controls():
    measured = [
        cell("full", [3.0, 1.0, 2.0], kv=0),
        cell("closed-book", [1.0, 1.0, 5.0], kv=0),
        cell("MT", [0.0, 9.0, 9.0]),
    ]

    def left(metric, cells):
        return [set(found.scores) for found in where_reading_helps(cells, metric)]

    assert left(SCORE, measured) == [{"item-0"}] * 3
    assert left(SCORE._replace(higher=False), measured) == [{"item-2"}] * 3
    assert left(SCORE, measured[:1]) == []


def test_yes_and_no_get_wilsons_interval():
    assert estimate([1.0] * 20, RIGHT).low == pytest.approx(0.839, abs=1e-3)
    assert estimate([0.0, 0.5, 1.0], RIGHT).value == 0.5
    # A cosine of 1 is no yes.
    assert estimate([1.0] * 20, SCORE) == Interval(1.0, 1.0, 1.0)


def test_a_row_as_plain_values():
    row = summarise([cell("MT", [1.0, 1.0], admitted=0.5)], [SCORE], "MT").rows[0]
    assert row.plain() == {
        "policy": "MT", "kv": 16, "q": 0, "items": 2, "score": [1.0, 1.0, 1.0], "gap": None,
        "admitted": 0.5, "present": None, "bytes": None, "entries": None, "cost": None,
    }  # fmt: skip
