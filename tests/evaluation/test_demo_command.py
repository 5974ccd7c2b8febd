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
from attendre_core.evaluation import CONTROLS
from attendre_core.evaluation.sweep import read_results
from attendre_core.evaluation.tasks import SYNTHETIC
from attendre_core.presets import PRESETS

#: A demo of a moment.
SMALL = ("--documents", "2", "--policies", "MT", "AS", "lfa-0+c=0", "closed-book")


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


def test_the_table_has_a_row_per_system_and_a_column_per_size(small: Run) -> None:
    lines = small.text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("M/N"))
    assert lines[head].split()[1:] == ["16/0", "32/0", "64/0", "256/0", "32/16", "64/32"]
    assert [line.split()[0] for line in lines[head + 1 : head + 4]] == ["MT", "AS", "LFA-0+c=0"]
    assert all(len(line) <= 100 for line in lines)


def planned(*arguments: str) -> Any:
    from attendre_core.cli import build_parser
    from attendre_core.cli.demo import plan_of

    return plan_of(build_parser().parse_args(["demo", *arguments]))


def test_without_options_it_shows_the_papers_systems_and_the_controls() -> None:
    """Under the paper's names with the paper's c, and with what helps beside it."""
    names = {cell.policy for cell in planned().cells}
    papers = {"MT", "AS", "LRA-last", "LRA-max", "LRA-sum", "LFA-0", "LFA-1e-3"}
    assert names >= {*papers, *CONTROLS, "LFA-1e-3+c=0", "attendre"}
    large = {cell.policy for cell in planned().cells if cell.kv == 256}
    assert large == {"MT", "AS"}


def test_everything_there_is() -> None:
    plan = planned("--full")
    assert set(plan.models) == {"prefix-lm", "encoder-decoder"}
    assert {(task.name, task.answers) for task in plan.tasks} == {
        (name, answers) for name in SYNTHETIC for answers in ("repeat", "single")
    }
    names = {cell.policy for cell in plan.cells}
    assert names >= {*PRESETS, *CONTROLS, "LFU+c=-1", "LRA-max+c=0"}
    assert len(plan.cells) == len(set(plan.cells))


def test_text_and_json_agree(small: Run) -> None:
    (table,) = small.answer["tables"]
    joined = " ".join(small.text.split())
    for sentence in table["findings"]:
        assert sentence in joined
    for row in table["rows"]:
        value, low, high = row["right"]
        assert low <= value <= high
        assert value in (0.0, 0.5, 1.0)
        if row["kv"]:
            assert f"{100 * value:.0f} ({100 * low:.0f}-" in small.text
    names = {row["policy"] for row in table["rows"]}
    assert names == {"MT", "AS", "LFA-0+c=0", "closed-book"}
    assert small.answer["picture"] in small.text


def test_a_seed_fixes_everything() -> None:
    few = ("--documents", "3", "--policies", "LFA-0")
    first, again, other = (run_json(*few, "--seed", seed)["tables"] for seed in "112")
    assert first == again != other


def test_the_picture(small: Run) -> None:
    assert "small.svg (opens in any browser)" in small.text
    words = [text.text for text in small.picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"MT", "AS", "LFA-0+c=0", "closed-book", "queries wait (N > 0)"} <= set(words)


def test_where_the_picture_goes(elsewhere: Path) -> None:
    assert "Picture: attendre-demo.svg" in run("--documents", "1", "--policies", "MT")
    assert (elsewhere / "attendre-demo.svg").stat().st_size > 1000


def test_controls_alone_have_no_picture() -> None:
    text = run("--documents", "2", "--policies", "closed-book", "full")
    assert "No picture" in text
    assert "Controls: full attention answers" in text


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

    monkeypatch.setattr("attendre_core.evaluation.sweep.run_cells", never)
    assert main(["demo", "--documents", "1", "--picture", "taken"]) == 2
    assert "the picture cannot be written to taken" in capsys.readouterr().err
    (elsewhere / "file").write_text("")
    assert main(["demo", "--documents", "1", "--out", "file"]) == 2
    assert "the folder file cannot be created" in capsys.readouterr().err


def test_a_results_file_that_is_none(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = elsewhere / "prefix-lm-look-ahead-repeat-0.jsonl"
    for words in ("milk, eggs\n", "[1]\n"):
        file.write_text(words)
        few = ["demo", "--documents", "1", "--policies", "MT", "--out", str(elsewhere)]
        assert main(few) == 2
        assert f"{file} is no results file of attendre" in capsys.readouterr().err
        assert file.read_text() == words


def test_controls_without_a_size_are_below_the_table(small: Run) -> None:
    (table,) = small.answer["tables"]
    (row,) = [row for row in table["rows"] if row["policy"] == "closed-book"]
    value, low, high = (round(100 * x) for x in row["right"])
    assert f"\nclosed-book {value} ({low}-{high})\n" in small.text
    assert "\nclosed-book 1.00 1.00\n" in small.text


def test_several_tables(elsewhere: Path) -> None:
    few = ("--documents", "1", "--policies", "MT", "LRA-last")
    answer = run_json(*few, "--task", "past-only", "--answers", "single", "repeat")
    titles = {}
    for answers in ("repeat", "single"):
        name = f"attendre-demo-prefix-lm-past-only-{answers}.svg"
        assert name in answer["picture"]
        words = ElementTree.parse(elsewhere / name).getroot().itertext()
        titles[answers] = next(word for word in words if word.startswith("Right answers"))
    assert titles["single"] == "Right answers: prefix-lm, past-only, single"
    assert [(t["model"], t["task"], t["answers"]) for t in answer["tables"]] == [
        ("prefix-lm", "past-only", "single"),
        ("prefix-lm", "past-only", "repeat"),
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


def test_it_continues_where_it_stopped(elsewhere: Path) -> None:
    few = ("--documents", "2", "--policies", "MT", "closed-book", "--out", "results")
    whole = run_json(*few)["tables"]
    file = elsewhere / "results" / "prefix-lm-look-ahead-repeat-0.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 7 * 2
    # As if the process had been killed in the middle of the fifth line.
    file.write_text("".join(lines[:4]) + lines[4][:50])
    assert run_json(*few)["tables"] == whole
    assert file.read_text().splitlines(keepends=True) == lines
    # More documents are added, and fewer are shown without the rest.
    assert run_json(*few, "--documents", "3")["tables"] != whole
    assert len(file.read_text().splitlines()) == 1 + 7 * 3
    assert run_json(*few)["tables"] == whole
    # Other documents have a file of their own.
    run_json(*few, "--seed", "1")
    identity, _ = read_results(elsewhere / "results" / "prefix-lm-look-ahead-repeat-1.jsonl")
    assert (identity["seed"], identity["answers"], identity["task"]) == (1, "repeat", "look-ahead")
