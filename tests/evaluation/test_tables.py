"""Grids, tables and sentences: every cell once, and nothing said that was not measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from attendre_core.evaluation.accuracy import Outcome
from attendre_core.evaluation.grid import PAPER_SYSTEMS, Cell, Grid, Measured, run
from attendre_core.evaluation.reading import admission, best, sentences
from attendre_core.evaluation.systems import CONTROLS
from attendre_core.evaluation.tables import Table, tables_of


def cell(system: str, kv: int, q: int, right: float, **other: float) -> Measured:
    """Make a cell in which a share of 100 documents is answered right."""
    flags = np.arange(100) < 100 * right
    sigmas = None if system in ("MT", "AS", *CONTROLS) else other.get("sigmas", 0.0)
    place = Cell("prefix-lm", "look-ahead", "repeat", system, kv, q, sigmas)
    full = np.ones(100)
    return Measured(
        place, Outcome(flags, full * other.get("admitted", 1.0), full * other.get("present", 1.0))
    )


def some_cells() -> list[Measured]:
    return [
        cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
        cell("LRA-sum", 32, 0, 0.6, admitted=0.4), cell("LFA-0", 32, 0, 0.7),
        cell("MT", 256, 0, 0.5), cell("LFA-0", 32, 16, 0.9, present=0.25),
        cell("closed-book", 0, 0, 0.03),
    ]  # fmt: skip


class TestGrid:
    def test_every_cell_once(self) -> None:
        cells = Grid(models=("prefix-lm", "encoder-decoder"), sigmas=(0.0, "paper")).cells()
        assert len(cells) == len(set(cells))
        # Seven systems, five of them with scores, and three sized controls at five sizes, two
        # more sizes for FIFO and sinks, three controls without a size.
        assert len(cells) == 2 * ((2 + 5 * 2 + 3) * 5 + 2 + 3)

    def test_large_sizes_are_for_fifo_and_sinks(self) -> None:
        large = {c.system for c in Grid(systems=PAPER_SYSTEMS).cells() if c.kv_size == 256}
        assert large == {"MT", "AS"}

    def test_it_runs_what_it_lists(self) -> None:
        grid = Grid(systems=("MT", "LRA-max", "no-memory"), sizes=((16, 0),), large=(), documents=3)
        found = list(run(grid))
        assert [m.cell for m in found] == grid.cells()
        assert all(m.outcome.right.shape == (3,) for m in found)
        again = list(run(grid))
        for one, other in zip(found, again, strict=True):
            assert np.array_equal(one.outcome.right, other.outcome.right)


class TestTables:
    def test_what_has_no_scores_is_in_every_table(self) -> None:
        found = [*some_cells(), cell("LFA-0", 32, 0, 0.4, sigmas=1.0)]
        first, second = tables_of(found)
        assert (first.heading[3], second.heading[3]) == (0.0, 1.0)
        assert first.systems == ["MT", "AS", "LRA-sum", "LFA-0"]
        assert second.systems == ["MT", "AS", "LFA-0"]
        value = {t.heading[3]: t.at("LFA-0", 32, 0) for t in (first, second)}
        assert value[0.0].accuracy.value == 0.7  # type: ignore[union-attr]
        assert value[1.0].accuracy.value == 0.4  # type: ignore[union-attr]
        assert first.title == "prefix-lm, look-ahead, repeat, c = 0"

    def test_a_table_of_controls_alone(self) -> None:
        (table,) = tables_of([cell("first-M", 32, 0, 0.2)])
        assert table.title == "prefix-lm, look-ahead, repeat"

    def test_rows_are_in_the_papers_order(self) -> None:
        (table,) = tables_of(some_cells())
        assert table.sizes == [(32, 0), (256, 0), (32, 16)]

    def test_lines(self) -> None:
        (table,) = tables_of(some_cells())
        lines = table.lines(lambda m: f"{m.accuracy.value:.2f}", mark=lambda text: f"*{text}")
        assert lines[0].split() == ["M", "N", "MT", "AS", "LRA-sum", "LFA-0"]
        assert lines[1].split() == ["32", "0", "0.10", "0.20", "0.60", "*0.70"]
        assert lines[2].split() == ["256", "0", "*0.50"]
        assert all(line == line.rstrip() for line in lines)
        assert Table(table.heading, table.measured).lines(str, ["MT"])[0].split() == [
            "M",
            "N",
            "MT",
        ]


class TestSentences:
    def said(self, measured: Sequence[Measured]) -> str:
        return "\n".join(sentences(measured, 16))

    def test_figures_are_those_measured(self) -> None:
        text = self.said(some_cells())
        assert "first-in-first-out answers 10 %, four sinks 20 %" in text
        assert "LFA-0, 70 %; against sinks +50 points [" in text
        assert (
            "LFA-0 with 32 entries answers 70 %, first-in-first-out with 256 entries 50 %" in text
        )
        assert "wait for 16 positions (M = 32) takes the best policy from 70 % to 90 %" in text
        assert "25 % of their own chunk is still there" in text
        assert "the question alone 3 %; a guess is right in 3 % of cases" in text

    def test_our_own_preset_is_compared(self) -> None:
        text = self.said([*some_cells(), cell("attendre", 32, 16, 1.0)])
        assert "answers 100 % with M = 32 and N = 16: against LFA-0 +10 points [" in text
        assert "100 % of the own chunk" in text
        assert "attendre" not in self.said(some_cells())

    def test_chance_is_called_chance(self) -> None:
        noisy = np.random.default_rng(0).random(100) < 0.5
        sinks = cell("AS", 32, 0, 0.5)
        top = cell("LFA-0", 32, 0, 0.5)
        top = top._replace(outcome=top.outcome._replace(right=noisy))
        text = self.said([cell("MT", 32, 0, 0.1), sinks, top])
        assert "which may be chance" in text
        assert "which may be chance" not in self.said(some_cells())

    def test_nothing_is_said_without_the_cells_for_it(self) -> None:
        assert self.said([cell("LFA-0", 32, 0, 0.5)]) == ""
        assert best([cell("MT", 32, 0, 0.5)]) is None
        assert admission([cell("MT", 32, 0, 0.5)]) is None

    @pytest.mark.parametrize(("admitted", "words"), [(0.1, "freezes"), (0.9, "no memory here")])
    def test_freezing_is_noticed(self, admitted: float, words: str) -> None:
        said = admission([cell("LRA-sum", 32, 0, 0.5, admitted=admitted)])
        assert said is not None
        assert words in said
        assert f"LRA-sum (M = 32, N = 0): {100 * admitted:.0f} %" in said
