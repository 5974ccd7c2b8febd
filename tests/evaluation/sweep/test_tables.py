"""Tables and pictures show every cell, and what is written beside a results file is complete."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import (
    Cell,
    Measured,
    ResultStore,
    Table,
    cell_table,
    read_results,
    report,
    size_table,
    summarise,
)
from attendre_core.evaluation.sweep.charts import scale_around
from attendre_core.evaluation.sweep.table import percent, shares, sizeless_line
from attendre_core.evaluation.tasks import Metric

IDENTITY = {"task": "made-up", "model": "none", "chunk": 16, "depth": None}
SCORE, RIGHT = Metric("score", "score"), Metric("right", "right", share=True)


@pytest.fixture
def folder(tmp_path):
    """A folder with the results of two policies and a control."""
    rng = np.random.default_rng(1)
    with ResultStore(tmp_path / "results.jsonl", IDENTITY) as store:
        for policy, base in (("MT", 0.0), ("LRA_x&y", 2.0)):
            for kv, q in ((16, 0), (32, 0), (32, 16)):
                scores = [
                    (str(i), {"score": base + kv / 16 + q + rng.normal(), "right": float(i % 3 > 0),
                              "admitted": 0.5, "present": 1.0, "bytes": 2.0**20 * kv})
                    for i in range(30)
                ]  # fmt: skip
                store.append(Cell(policy, kv, q), scores)
        store.append(Cell("full", 0, 0), [("0", {"score": 5.0, "right": 1.0})])
    return tmp_path


def test_a_report_is_complete(folder):
    found = report(folder, (SCORE, RIGHT), "MT")
    names = {file.name for file in found.files}
    wanted = {"results.jsonl", "table.md", "table.tex", "score.svg", "waiting.svg", "memory.svg"}
    assert wanted <= names
    assert all(file.is_file() for file in found.files)
    lines = (folder / "table.md").read_text().splitlines()
    assert lines[0].startswith("| policy | M | N | n | score | score \N{MINUS SIGN} MT | right % |")
    assert len(lines) == 2 + 7
    assert len({line.count("|") for line in lines}) == 1
    assert "| 67 (49 to 81) | 0.50 | 1.00 | 16.00 |" in lines[3]
    assert sum("**+" in line for line in lines) == 3
    tex = (folder / "table.tex").read_text()
    assert r"LRA\_x\&y & 16 & 0 & 30" in tex
    assert r"\textbf{+" in tex
    assert tex.count(r"\\") == 8


def test_pictures_are_svg_with_every_system(folder):
    report(folder, (SCORE, RIGHT), "MT")
    for name in ("score.svg", "waiting.svg", "memory.svg"):
        root = ET.fromstring((folder / name).read_text())
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"MT", "LRA_x&y"} <= set(texts)
    score = (folder / "score.svg").read_text()
    assert "queries wait" in score
    assert ">full<" in score


def test_parquet_holds_the_same(folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    report(folder, (SCORE, RIGHT), "MT")
    table = parquet.read_table(folder / "results.parquet").to_pylist()
    _, measured = read_results(folder / "results.jsonl")
    assert len(table) == sum(len(found.scores) for found in measured)
    assert table[0] == {**measured[0].cell._asdict(), "item": "0", **measured[0].scores["0"]}
    assert table[-1]["bytes"] is None


def test_an_unknown_baseline_is_refused(folder):
    with pytest.raises(ConfigError, match="baseline 'AS' was not measured; there are LRA_x&y, MT"):
        report(folder, (SCORE,), "AS")


def test_perplexities_are_exponentials_and_their_differences_are_losses():
    loss = Metric("loss", "perplexity", higher=False, exponential=True)
    measured = [
        Measured(Cell(policy, 16, 0), {str(i): {"loss": value} for i in range(20)})
        for policy, value in (("MT", math.log(20.0)), ("AS", math.log(10.0)))
    ]
    table = cell_table(summarise(measured, [loss], "MT"))
    assert "| AS | 16 | 0 | 20 | 10.00 (10.00 to 10.00) | **\N{MINUS SIGN}0.69" in table.markdown()
    assert "loss \N{MINUS SIGN} MT" in table.plain()
    assert "$-$0.69" in table.latex()


@pytest.mark.parametrize(("count", "bold"), [(4, False), (19, False), (20, True)])
def test_few_items_are_never_bold(count, bold):
    """A bootstrap of a few items is too narrow."""
    items = {str(i): i for i in range(count)}
    measured = [
        Measured(Cell("MT", 16, 0), {name: {"right": 0.0} for name in items}),
        Measured(Cell("AS", 16, 0), {name: {"right": 1.0} for name in items}),
        # More items than are compared do not help.
        Measured(Cell("LRU", 16, 0), {str(i): {"right": 1.0} for i in range(count + 9)}),
    ]
    summary = summarise(measured, [RIGHT], "MT")
    assert [row.gap is not None and row.gap.excludes_zero for row in summary.rows] == [
        False, True, True,
    ]  # fmt: skip
    for table in (cell_table(summary), size_table(summary, percent)):
        assert ("**" in table.markdown()) == bold
        assert ("textbf" in table.latex()) == bold


def test_entries_and_cost_have_columns_where_they_were_measured():
    def cell(policy, seconds, entries):
        score = {"score": 1.0, "bytes": 2.0**20, "seconds": seconds, "entries": entries}
        return Measured(Cell(policy, 16, 0), {str(i): dict(score) for i in range(3)})

    measured = [cell("MT", 2.0, 16.0), cell("H2O", 3.0, 24.0)]
    table = cell_table(summarise(measured, [SCORE], "MT"))
    assert table.head[-3:] == ["entries", "MiB", "cost"]
    assert [row[-3:] for row in table.rows] == [["16", "1.00", "1.00"], ["24", "1.00", "1.50"]]
    assert summarise(measured, [SCORE], "MT").rows[1].plain()["cost"] == 1.5
    plain = [Measured(m.cell, {"a": {"score": 1.0, "bytes": 1.0}}) for m in measured]
    assert cell_table(summarise(plain, [SCORE], "MT")).head[-1] == "MiB"


def test_digits_are_those_of_the_metric():
    cosine = Metric("cosine", "cosine", digits=3)
    measured = [Measured(Cell("MT", 16, 0), {"a": {"cosine": 0.98765}})]
    assert "0.988 (0.988 to 0.988)" in cell_table(summarise(measured, [cosine], "MT")).plain()


class TestSizes:
    """The table of the demo: a row per system, a column per size."""

    @pytest.fixture
    def summary(self):
        def cell(policy, kv, q, right, **more):
            flags = [float(i < 100 * right) for i in range(100)]
            return Measured(
                Cell(policy, kv, q),
                {
                    str(i): {"right": f, "admitted": 1.0, "present": 0.25}
                    for i, f in enumerate(flags)
                },
            )

        measured = [
            cell("closed-book", 0, 0, 0.03), cell("MT", 32, 0, 0.1), cell("LFA-0+c=0", 32, 0, 0.7),
            cell("LFA-0+c=0", 32, 16, 0.9), cell("MT", 256, 0, 0.5), cell("MT", 32, 16, 0.9),
        ]  # fmt: skip
        return summarise(measured, [RIGHT], "MT")

    def test_rows_and_columns(self, summary):
        table = size_table(summary, lambda row: f"{row.values['right'].value:.2f}")
        assert table.head == ["M/N", "32/0", "256/0", "32/16"]
        assert table.rows == [["MT", "0.10", "0.50", "0.90"], ["LFA-0+c=0", "0.70", "", "0.90"]]
        assert table.strong == {(0, 3), (1, 3)}, "the best of all sizes and systems, twice"

    def test_what_a_cell_shows(self, summary):
        assert size_table(summary, percent).rows[0][1] == "10 (6-17)"
        assert size_table(summary, shares).rows[0][1] == "1.00 0.25"
        assert sizeless_line(summary, percent) == "closed-book 3 (1-8)"

    def test_less_is_better_for_a_loss(self, summary):
        lower = summary._replace(metrics=(RIGHT._replace(higher=False),))
        assert size_table(lower, percent).strong == {(0, 1)}

    def test_a_cell_of_few_items_leaves_all_unmarked(self, summary):
        rows = [row._replace(items=19) if row.cell.kv == 256 else row for row in summary.rows]
        assert not size_table(summary._replace(rows=rows), percent).strong


class TestPieces:
    """Tables for a narrow terminal."""

    WIDE = Table(
        ["name", "16/0", "32/0", "64/0"],
        [["a", "5 (1-17)", "100 (91-100)", ""], ["LFA-1e-3", "7", "8", "9 (2-20)"]],
        frozenset({(0, 2)}),
    )

    def test_no_piece_is_wider_and_nothing_is_lost(self):
        for wide in (20, 24, 32, 33, 34, 60):
            pieces = self.WIDE.starred().pieces(wide)
            for piece in pieces:
                longest = max(map(len, piece.plain().splitlines()))
                assert longest <= wide or len(piece.head) == 2
            assert [c for piece in pieces for c in piece.head[1:]] == list(self.WIDE.head[1:])
            for i, row in enumerate(self.WIDE.starred().rows):
                assert [c for piece in pieces for c in piece.rows[i][1:]] == list(row[1:])
        assert [len(piece.head) for piece in self.WIDE.pieces(34)] == [3, 2]
        assert [len(piece.head) for piece in self.WIDE.pieces(60)] == [4]

    def test_a_mark_stays_with_its_cell(self):
        one, two = self.WIDE.starred().pieces(34)
        assert one.rows[0][2] == "*100 (91-100)"
        assert (one.strong, two.strong) == (frozenset({(0, 2)}), frozenset())


class TestText:
    TABLE = Table(["name", "a", "bbb"], [["x|y", "1", "2"], ["long name", "", "30"]],
                  frozenset({(0, 2)}))  # fmt: skip

    def test_in_a_terminal_names_are_left_and_figures_right(self):
        assert self.TABLE.plain(lambda text: f"*{text}*").splitlines() == [
            "name       a  bbb",
            "x|y        1    *2*",
            "long name      30",
        ]

    def test_in_markdown(self):
        assert self.TABLE.markdown().splitlines() == [
            "| name | a | bbb |",
            "| --- | ---: | ---: |",
            "| x\\|y | 1 | **2** |",
            "| long name |  | 30 |",
        ]
        assert "| --- | --- | --- |" in self.TABLE.markdown(figures=False)


@pytest.mark.parametrize("low", [-7.31, 0.0, 0.02])
@pytest.mark.parametrize("span", [0.0, 0.013, 0.7, 3.0, 88.0])
def test_scales_are_round_and_hold_everything(low, span):
    scale = scale_around([Interval(low + span / 2, low, low + span)], SCORE)
    assert scale.low <= low + 1e-9
    assert scale.high >= low + span - 1e-9
    steps = (scale.high - scale.low) / scale.step
    assert steps == pytest.approx(round(steps))
    assert 1 <= round(steps) <= 8
