"""``attendre demo``: what it prints, draws and says."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from attendre_core.cli import main
from attendre_core.cli.demo_story import RULES
from attendre_core.evaluation import CONTROLS
from attendre_core.evaluation.sweep import read_results
from attendre_core.evaluation.tasks import SYNTHETIC
from attendre_core.presets import PRESETS

#: The systems that read the English text, of which nothing else is measured for long.
QUICK = ("--policies", *RULES)
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
    others = [line for line in err.getvalue().splitlines() if not line.startswith("reading: ")]
    assert not others, "only a slow machine says more, how far it is"
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
    text, answer = run(*SMALL, *more, "--tables"), run_json(*SMALL, *more)
    return Run(text, answer, ElementTree.parse(file).getroot())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Enough documents for marks, few systems."""
    file = tmp_path_factory.mktemp("demo") / "many.svg"
    few = ("--documents", "20", "--policies", "MT", "AS", "attendre", "full", "--tables")
    more = ("--picture", str(file))
    results = ("--out", str(file.parent))  # what was measured once is read by the second
    text, answer = run(*few, *more, *results), run_json(*few, *more, *results)
    return Run(text, answer, ElementTree.parse(file).getroot())


def start(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "attendre_core.cli", "demo", *arguments],
        capture_output=True, text=True, encoding="utf-8", check=True, timeout=300,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
    )  # fmt: skip


def test_the_tables_have_a_row_per_system_and_a_column_per_size(small: Run) -> None:
    lines = small.text.splitlines()
    heads = [i for i, line in enumerate(lines) if line.startswith("M/N")]
    columns = [lines[head].split()[1:] for head in heads]
    assert columns == [["16/0", "32/0", "64/0", "256/0"], ["32/16", "64/32"]] * 2
    for head in heads:
        names = [line.split()[0] for line in lines[head + 1 : head + 4]]
        assert names == ["MT", "AS", "LFA-0+c=0"]


@pytest.mark.parametrize("columns", ["80", "200"])
def test_no_line_is_longer_than_80_columns(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    long = "LFA-0+softmax+c=-2+visible"
    text = run("--documents", "1", "--policies", "MT", "AS", "LFA-1e-3+c=0", long, "--tables")
    assert max(map(len, text.splitlines())) <= 80
    assert long in text


def test_sentences_and_bars_come_first_and_tables_on_demand(small: Run) -> None:
    parts = ("An English text", "- With room", "queries attend at once", "M/N")
    places = [small.text.index(part) for part in parts]
    assert places == sorted(places)
    short = run(*SMALL)
    assert "M/N" not in short
    assert "attendre demo --tables" in short
    assert [part in short for part in parts] == [True, True, True, False]
    assert small.text.startswith(short.partition("- ")[0])


def test_the_bars_are_those_of_the_table(many: Run) -> None:
    lines = many.text.partition("M/N")[0].splitlines()
    shares = {
        (row["policy"], row["q"]): round(100 * row["right"][0])
        for row in many.answer["tables"][0]["rows"]
        if row["kv"] == 32
    }
    best = max(shares.values())
    for name in ("MT", "AS", "attendre"):
        (line,) = (line for line in lines if re.match(rf"{name} .*\(", line))
        shown = re.findall(r"(#*) *(\*?)(\d+) \(", line)
        assert [int(share) for *_, share in shown] == [shares[name, 0], shares[name, 16]]
        for bar, star, share in shown:
            assert len(bar) == round(19 * int(share) / 100)
            assert (star == "*") == (int(share) == best)


def test_the_best_of_all_cells_is_marked_once_there_are_enough_documents(many: Run) -> None:
    rows = many.answer["tables"][0]["rows"]
    shares = [row["right"][0] for row in rows if row["kv"]]
    cells = re.findall(r"(\*?)(\d+) \(", many.text.partition("M/N")[2])
    assert len(cells) == len(rows) == len(shares) + 1
    marked = [int(share) for star, share in cells if star]
    assert marked == [round(100 * max(shares))] * shares.count(max(shares))


def test_few_documents_mark_nothing(small: Run) -> None:
    assert not re.search(r"\*\d", small.text)


def test_the_english_text_is_read_by_four_systems() -> None:
    """Its words, verdicts and shares are those of the tiny model."""
    text, answer = run("--documents", "2", *QUICK), run_json("--documents", "2", *QUICK)
    (story,) = answer["stories"]
    assert [system["policy"] for system in story["systems"]] == list(RULES)
    assert story["answer"] in story["fact"]
    joined = " ".join(text.split())
    assert story["question"] in joined
    assert story["fact"] in joined
    for system in story["systems"]:
        right = system["answer"] == story["answer"]
        verdict = f"{'right' if right else 'wrong'}: {system['answer']}"
        assert f"{verdict}; right in {system['right']} of 2 such texts" in joined
        assert (story["answer"] in " ".join(system["kept"]).split()) >= right
    by_name = {system["policy"]: system for system in story["systems"]}
    assert by_name["attendre"]["right"] == 2 > by_name["MT"]["right"]
    assert by_name["MT"]["kept"] == [" ".join(by_name["MT"]["kept"])], "the last words in a row"


def test_other_systems_read_the_english_text_if_they_are_asked_for() -> None:
    few = ("--documents", "1", "--policies", "full", "LRU", "MT", "LFU", "H2O", "TOVA")
    (story,) = run_json(*few)["stories"]
    assert [system["policy"] for system in story["systems"]] == ["LRU", "MT", "LFU", "H2O"]
    assert run_json("--documents", "1", "--policies", "full")["stories"] == []


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
        assert f"{file} is not a results file of attendre" in capsys.readouterr().err
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
