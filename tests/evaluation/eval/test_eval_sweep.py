"""Grids, results on disk, summaries and tables."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import attendre_core as at
from attendre_core.errors import ConfigError, StateError
from attendre_core.evaluation.benchmarks import Metric
from attendre_core.evaluation.intervals import Interval
from attendre_core.evaluation.sweep import (
    Cell,
    ResultStore,
    cells_of,
    read_results,
    report,
    system_of,
)
from attendre_core.evaluation.sweep.plots import scale_around
from attendre_core.evaluation.sweep.store import Record
from attendre_core.evaluation.sweep.summary import mean_of, paired, summarise, where_reading_helps
from attendre_core.evaluation.sweep.writing import latex, markdown, plain

IDENTITY = {"task": "made-up", "model": "none", "chunk": 16, "depth": None}
SCORE, RIGHT = Metric("score", "score"), Metric("right", "right", share=True)

# ---------------------------------------------------------------- systems by words


def test_options_change_what_they_say():
    made = system_of("LRA-sum+softmax+c=-1+visible+in-cache+hold", 64, 32, 16, 128)
    assert made.name == "LRA-sum+softmax+c=-1+visible+in-cache+hold"
    assert made.memory.policy == at.LRA(
        "sum", score="softmax", hold=True, initial=at.InitialScore(-1.0)
    )
    assert (made.memory.present, made.memory.positions) == ("visible", "in-cache")
    assert (made.memory.kv_size, made.memory.q_size, made.memory.top_k) == (64, 32, 64)
    quota = system_of("LFA-0+quota=0.5", 64, 0, 16, None).memory.policy
    assert quota.initial == at.QuotaScore(0.5)


def test_plain_names_are_the_presets():
    for name in at.presets.PRESETS:
        assert system_of(name, 64, 0, 16, None).memory == at.preset(name, 64, 0, 16)
    assert system_of("LFA-1e-4", 64, 0, 16, None).memory.policy == at.LFA(decay=1e-4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("LRB", "policy 'LRB' is not known; known are MT"),
        ("MT+c=0", "FIFO has no initial"),
        ("LRA-sum+loud", "'loud' in 'LRA-sum.loud' is not known"),
        ("LRA-sum+c=x", "'c=x' in"),
        ("LRA-sum+quota=2", "share is 2.0"),
        ("full+visible", "control with options"),
    ],
)
def test_wrong_words_are_explained(words, message):
    with pytest.raises(ConfigError, match=message):
        system_of(words, 64, 0, 16, None)


# ---------------------------------------------------------------- plans


def test_cells_come_once_and_controls_without_a_size_first():
    cells = cells_of(["MT", "LFA-0", "MT"], ["full", "first-M"], [64, 32], [0, "half", 32])
    assert cells[0] == Cell("full", 0, 0)
    assert len(cells) == len(set(cells)) == 1 + 3 * (2 + 2)
    assert Cell("MT", 32, 32) not in cells
    assert Cell("first-M", 64, 32) in cells


def test_waiting_longer_than_the_memory_is_refused():
    with pytest.raises(ConfigError, match=r"every N of \[64\] is as large as every M of \[32\]"):
        cells_of(["MT"], [], [32], [64])


# ---------------------------------------------------------------- results on disk


def test_results_survive(tmp_path):
    file, cell = tmp_path / "results.jsonl", Cell("MT", 16, 0)
    with ResultStore(file, IDENTITY) as store:
        store.append(cell, [("a", {"score": 1 / 3}), ("b", {"score": -2.0, "bytes": 12.0})])
    with ResultStore(file, IDENTITY) as store:
        assert store.done(cell) == {"a", "b"}
        assert store.done(Cell("MT", 16, 8)) == set()
    header, records = read_results(file)
    assert header == IDENTITY
    assert records == [
        Record(cell, "a", {"score": 0.33333}),
        Record(cell, "b", {"score": -2.0, "bytes": 12.0}),
    ]


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_line_that_was_cut_short_is_measured_again(tmp_path, cut):
    file, cell = tmp_path / "results.jsonl", Cell("MT", 16, 0)
    with ResultStore(file, IDENTITY) as store:
        store.append(cell, [("a", {"score": 1.0})])
        store.append(cell, [("b", {"score": 2.0})])
    file.write_bytes(file.read_bytes()[:-cut])
    with ResultStore(file, IDENTITY) as store:
        assert store.done(cell) == {"a"}
        store.append(cell, [("b", {"score": 2.0})])
    assert [record.item for record in read_results(file)[1]] == ["a", "b"]


def test_a_header_that_was_cut_short_is_written_again(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('{"attendre-ev')
    with ResultStore(file, IDENTITY) as store:
        store.append(Cell("MT", 16, 0), [("a", {"score": 1.0})])
    assert read_results(file)[0] == IDENTITY


def test_results_of_something_else_are_refused(tmp_path):
    file = tmp_path / "results.jsonl"
    with ResultStore(file, IDENTITY):
        pass
    before = file.read_bytes()
    with pytest.raises(StateError, match="chunk 16, now 32.*--out"):
        ResultStore(file, {**IDENTITY, "chunk": 32})
    with pytest.raises(StateError, match="model 'none', now 'other'"):
        ResultStore(file, {**IDENTITY, "model": "other"})
    with pytest.raises(StateError, match="seed None, now 3"):
        ResultStore(file, {**IDENTITY, "seed": 3})
    assert file.read_bytes() == before


def test_files_of_others_are_refused_and_not_touched(tmp_path):
    file = tmp_path / "results.jsonl"
    file.write_text('{"name": "not ours"}\n')
    with pytest.raises(StateError, match="no results file of attendre eval"):
        ResultStore(file, IDENTITY)
    assert file.read_text() == '{"name": "not ours"}\n'


def test_two_processes_cannot_write_one_file(tmp_path):
    pytest.importorskip("fcntl")
    file = tmp_path / "results.jsonl"
    with (
        ResultStore(file, IDENTITY),
        pytest.raises(StateError, match="written by another process"),
    ):
        ResultStore(file, IDENTITY)


# ---------------------------------------------------------------- summaries


def records_of(policy, values, kv=16, q=0, **more):
    return [
        Record(Cell(policy, kv, q), f"item-{i}", {"score": value, **more})
        for i, value in enumerate(values)
    ]


def test_differences_are_paired():
    rng = np.random.default_rng(0)
    hard = rng.normal(size=60) * 10
    records = records_of("MT", hard) + records_of("LFA-0", hard + 1 + 0.1 * rng.normal(size=60))
    summary = summarise(records, [SCORE, RIGHT], "MT")
    first, second = summary.rows
    assert summary.metrics == (SCORE,)
    assert first.gap is None
    # What makes an item hard does not count: the means are uncertain by 5, the gap by 0.05.
    assert second.values["score"].high - second.values["score"].low > 3
    assert second.gap.value == pytest.approx(1, abs=0.05)
    assert 0.9 < second.gap.low < second.gap.high < 1.1


def test_a_half_measured_cell_is_compared_where_both_are():
    records = records_of("MT", [1.0, 2.0, 3.0]) + records_of("LFA-0", [2.0, 3.0])
    row = summarise(records, [SCORE], "MT").rows[1]
    assert row.items == 2
    assert row.gap == Interval(1.0, 1.0, 1.0)
    assert paired({"a": 1.0}, {"b": 1.0}) is None


def test_baselines_stand_at_their_own_size():
    records = (
        records_of("MT", [1.0, 1.0], kv=16)
        + records_of("MT", [2.0, 2.0], kv=32)
        + records_of("LFA-0", [5.0, 5.0], kv=32)
        + records_of("full", [9.0, 9.0], kv=0)
    )
    gaps = {row.cell: row.gap for row in summarise(records, [SCORE], "MT").rows}
    assert gaps[Cell("LFA-0", 32, 0)].value == 3
    assert gaps[Cell("full", 0, 0)] is None
    gaps = {row.cell: row.gap for row in summarise(records, [SCORE], "full").rows}
    assert gaps[Cell("MT", 16, 0)].value == -8
    single = summarise(records[:2] + records[-2:], [SCORE], "MT").rows
    assert single[0].gap.value == 8


def test_where_reading_helps_is_chosen_by_the_controls():
    records = (
        records_of("full", [3.0, 1.0, 2.0], kv=0)
        + records_of("closed-book", [1.0, 1.0, 5.0], kv=0)
        + records_of("MT", [0.0, 9.0, 9.0])
    )
    assert {record.item for record in where_reading_helps(records, SCORE)} == {"item-0"}
    loss = SCORE._replace(higher=False)
    assert {record.item for record in where_reading_helps(records, loss)} == {"item-2"}
    assert where_reading_helps(records[:3], SCORE) == []


def test_yes_and_no_get_wilsons_interval():
    assert mean_of([1.0] * 20, share_of=True).low == pytest.approx(0.839, abs=1e-3)
    assert mean_of([0.0, 0.5, 1.0], share_of=True).value == 0.5
    # A cosine of 1 is no yes.
    assert mean_of([1.0] * 20) == Interval(1.0, 1.0, 1.0)


# ---------------------------------------------------------------- tables and pictures


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
    _, records = read_results(folder / "results.jsonl")
    assert len(table) == len(records)
    assert table[0] == {**records[0].cell._asdict(), "item": "0", **records[0].score}
    assert table[-1]["bytes"] is None


def test_an_unknown_baseline_is_refused(folder):
    with pytest.raises(ConfigError, match="baseline 'AS' was not measured; there are LRA_x&y, MT"):
        report(folder, (SCORE,), "AS")


def test_perplexities_are_exponentials_and_their_differences_are_losses():
    loss = Metric("loss", "perplexity", higher=False, exponential=True)
    records = [
        Record(Cell(policy, 16, 0), str(i), {"loss": value})
        for policy, value in (("MT", math.log(20.0)), ("AS", math.log(10.0)))
        for i in range(4)
    ]
    summary = summarise(records, [loss], "MT")
    assert "| AS | 16 | 0 | 4 | 10.00 (10.00 to 10.00) | **\N{MINUS SIGN}0.69" in markdown(summary)
    assert "loss \N{MINUS SIGN} MT" in plain(summary)
    assert "$-$0.69" in latex(summary)


@pytest.mark.parametrize("low", [-7.31, 0.0, 0.02])
@pytest.mark.parametrize("span", [0.0, 0.013, 0.7, 3.0, 88.0])
def test_scales_are_round_and_hold_everything(low, span):
    scale = scale_around([Interval(low + span / 2, low, low + span)], SCORE)
    assert scale.low <= low + 1e-9
    assert scale.high >= low + span - 1e-9
    steps = (scale.high - scale.low) / scale.step
    assert steps == pytest.approx(round(steps))
    assert 1 <= round(steps) <= 8


def test_the_results_file_is_plain_json_lines(folder):
    lines = (folder / "results.jsonl").read_text().splitlines()
    assert all(isinstance(json.loads(line), dict) for line in lines)
