"""``attendre demo``: what it prints, draws and says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attendre_core.cli import main
from attendre_core.evaluation.grid import PAPER_SYSTEMS

#: A demo of a moment.
SMALL = ("--documents", "2", "--policies", "MT", "AS", "LFA-0", "closed-book")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write pictures into an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(["demo", *arguments]) == 0
    assert err.getvalue() == ""
    return out.getvalue()


def run_json(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run(*arguments, "--json"))
    return answer


class Run(NamedTuple):
    """One small demo, which several tests look at."""

    text: str
    answer: dict[str, Any]
    picture: ElementTree.Element


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    file = tmp_path_factory.mktemp("demo") / "small.svg"
    more = ("--picture", str(file))
    text, answer = run(*SMALL, *more), run_json(*SMALL, *more)
    return Run(text, answer, ElementTree.parse(file).getroot())


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attendre_core.cli", "demo", *arguments],
        capture_output=True, text=True, encoding="utf-8", check=True, timeout=300,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip


def test_the_table_has_the_papers_shape(small: Run) -> None:
    lines = small.text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:2] == ["M", "N"])
    assert lines[head].split()[2:] == ["MT", "AS", "LFA-0"]
    rows = [tuple(line.split()[:2]) for line in lines[head + 1 : head + 7]]
    assert rows == [
        ("16", "0"), ("32", "0"), ("64", "0"), ("256", "0"), ("32", "16"), ("64", "32"),
    ]  # fmt: skip


def test_without_options_it_shows_the_papers_policies_and_the_controls() -> None:
    from attendre_core.cli import build_parser
    from attendre_core.cli.demo import grid_of
    from attendre_core.evaluation.systems import CONTROLS

    grid = grid_of(build_parser().parse_args(["demo"]))
    shown = {cell.system for cell in grid.cells()}
    assert shown >= {*PAPER_SYSTEMS, *CONTROLS, "attendre"}
    full = grid_of(build_parser().parse_args(["demo", "--full"]))
    assert {(cell.model, cell.task, cell.answers) for cell in full.cells()} == {
        (model, task, answers)
        for model in ("prefix-lm", "encoder-decoder")
        for task in ("look-ahead", "past-only")
        for answers in ("repeat", "single")
    }


def test_text_and_json_agree(small: Run) -> None:
    (table,) = small.answer["tables"]
    joined = " ".join(small.text.split())
    for sentence in table["reading"]:
        assert sentence in joined
    for cell in table["cells"]:
        assert cell["low"] <= cell["accuracy"] <= cell["high"]
        assert cell["accuracy"] == pytest.approx(cell["right"] / 2)
        if cell["kv_size"]:
            assert f"{100 * cell['accuracy']:.0f} ({100 * cell['low']:.0f}-" in small.text
    assert {cell["policy"] for cell in table["cells"]} == {"MT", "AS", "LFA-0", "closed-book"}
    assert small.answer["picture"] in small.text


def test_a_seed_fixes_everything() -> None:
    few = ("--documents", "3", "--policies", "LFA-0")
    first, again, other = (run_json(*few, "--seed", seed)["tables"] for seed in "112")
    assert first == again != other


def test_the_picture(small: Run) -> None:
    assert "small.svg (opens in any browser)" in small.text
    words = [text.text for text in small.picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"MT", "AS", "LFA-0", "queries wait (N > 0)"} <= set(words)
    assert "closed-book" not in words


def test_where_the_picture_goes(elsewhere: Path) -> None:
    assert "Picture: attendre-demo.svg" in run("--documents", "1", "--policies", "MT")
    assert (elsewhere / "attendre-demo.svg").stat().st_size > 1000


def test_controls_alone_have_no_picture() -> None:
    text = run("--documents", "2", "--policies", "closed-book", "full")
    assert "No picture" in text
    assert "Controls: attention to everything answers" in text


def test_a_picture_that_cannot_be_written(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "taken").mkdir()
    arguments = ["demo", "--documents", "1", "--policies", "MT", "--picture", "taken"]
    assert main(arguments) == 2
    assert "cannot be written to taken" in capsys.readouterr().err


def test_a_place_that_is_taken_is_found_before_anything_is_measured(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (elsewhere / "taken").mkdir()

    def never(*_: Any) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr("attendre_core.evaluation.resuming.run_cells", never)
    for option in ("picture", "records"):
        assert main(["demo", "--documents", "1", f"--{option}", "taken"]) == 2
        assert f"the {option} cannot be written to taken" in capsys.readouterr().err


def test_records_that_are_none(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = elsewhere / "notes.jsonl"
    for words in ("milk, eggs\n", "[1]\n"):
        file.write_text(words)
        few = ["demo", "--documents", "1", "--policies", "MT", "--records", str(file)]
        assert main(few) == 2
        assert f"line 1 of {file} is no measured cell" in capsys.readouterr().err
        assert file.read_text() == words


def test_controls_without_a_size_stand_under_the_table(small: Run) -> None:
    (table,) = small.answer["tables"]
    (cell,) = [cell for cell in table["cells"] if cell["policy"] == "closed-book"]
    value, low, high = (round(100 * cell[name]) for name in ("accuracy", "low", "high"))
    assert f"\nclosed-book {value} ({low}-{high})\n" in small.text
    assert "\nclosed-book 1.00 1.00\n" in small.text


def test_several_tables(elsewhere: Path) -> None:
    few = ("--documents", "1", "--policies", "MT", "LRA-last", "--sigmas", "0", "paper")
    answer = run_json(*few, "--task", "past-only", "--model", "encoder-decoder")
    tables = answer["tables"]
    titles = {}
    for c in ("0.0", "paper"):
        name = f"attendre-demo-encoder-decoder-past-only-repeat-c-{c}.svg"
        assert name in answer["picture"]
        words = ElementTree.parse(elsewhere / name).getroot().itertext()
        titles[c] = next(word for word in words if word.startswith("Right answers"))
    assert titles["0.0"].endswith("c = 0")
    assert titles["paper"].endswith("the paper's c")
    assert [(t["model"], t["task"], t["sigmas"]) for t in tables] == [
        ("encoder-decoder", "past-only", 0.0),
        ("encoder-decoder", "past-only", "paper"),
    ]


def test_a_plain_pipe_gets_no_colour_and_an_ascii_terminal_ascii() -> None:
    done = start("--documents", "1", "--policies", "MT", "LFA-0", PYTHONIOENCODING="ascii")
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert done.stdout.isascii()


def test_another_library_answers_the_same() -> None:
    pytest.importorskip("torch")
    few = ("--documents", "1", "--policies", "AS")
    assert run_json(*few)["tables"] == run_json(*few, "--backend", "torch")["tables"]


def test_it_goes_on_where_it_stopped(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("--documents", "1", "--policies", "MT", "LFA-0", "--records", "cells.jsonl")
    whole = run_json(*few)["tables"]
    file = elsewhere / "cells.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 11
    # As if the process had been ended in the middle of the fifth line.
    file.write_text("".join(lines[:4]) + lines[4][:50])
    measured = []

    def counted(cells: Any, grid: Any) -> Any:
        from attendre_core.evaluation import grid as grids

        for one in grids.run_cells(cells, grid):
            measured.append(one.cell)
            yield one

    monkeypatch.setattr("attendre_core.evaluation.resuming.run_cells", counted)
    assert run_json(*few)["tables"] == whole
    assert len(measured) == 7
    assert run_json(*few)["tables"] == whole
    assert len(measured) == 7
    run_json(*few, "--seed", "1")
    assert len(measured) == 18
