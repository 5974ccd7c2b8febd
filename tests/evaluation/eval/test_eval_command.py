"""The command ``attendre eval``: help, errors, a kill in the middle, and what it writes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from attendre_core.cli import main
from attendre_core.cli.eval_tasks import TASKS
from attendre_core.evaluation.sweep import read_results

GRID = [
    "eval", "synthetic", "--model", "prefix-lm", "--policies", "MT,LFA-0+c=0", "--size", "16",
    "--limit", "4",
]  # fmt: skip


def lines_of(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_help_teaches(capsys):
    with pytest.raises(SystemExit):
        main(["eval", "--help"])
    text = capsys.readouterr().out
    for name in TASKS:
        assert name in text
    for line in re.findall(r"^  attendre eval .*$", text, re.MULTILINE):
        assert line.split()[2] in TASKS


def test_a_grid_is_measured_and_shown(tmp_path, capsys):
    assert main([*GRID, "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["baseline"] == "MT"
    rows = {(row["policy"], row["kv"], row["q"]): row for row in answer["rows"]}
    assert len(rows) == 3 + 5
    assert all(row["items"] == 4 for row in rows.values())
    assert rows["full", 0, 0]["right"][0] > rows["closed-book", 0, 0]["right"][0]
    assert rows["first-M", 16, 0]["admitted"] == 0
    assert {"table.md", "table.tex", "score.svg"} <= {p.name for p in tmp_path.iterdir()}
    # Again: nothing is measured, nothing is lost, and the table is the same.
    before = (tmp_path / "results.jsonl").read_bytes()
    assert main([*GRID, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "results.jsonl").read_bytes() == before
    shown = capsys.readouterr().out
    assert "LFA-0+c=0" in shown
    assert "first-M" in shown


def test_equal_bytes_are_one_option_away(tmp_path, capsys):
    options = ["--policies", "MT,H2O,attendre", "--size", "32,64", "--equal-bytes"]
    assert main([*GRID, *options, "--out", str(tmp_path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert any("At equal bytes" in note for note in answer["notes"])
    sized = [row for row in answer["rows"] if row["kv"]]
    for rows in (sized[:6], sized[6:]):
        assert [row["policy"] for row in rows] == [
            "MT", "H2O", "attendre", "first-M", "random", "pinned",
        ]  # fmt: skip
        budget = rows[0]["bytes"]
        assert all(0.9 * budget < row["bytes"] <= budget for row in rows)
        assert rows[0]["gap"] is None
        assert all(row["gap"] is not None for row in rows[1:])
    assert [row["kv"] for row in sized if row["policy"] == "MT"] == [32, 64]
    assert all(row["kv"] < 64 for row in sized if row["policy"] in ("H2O", "attendre"))


def test_a_grid_can_grow(tmp_path, capsys):
    small = [*GRID, "--no-controls", "--out", str(tmp_path)]
    assert main(small) == 0
    _, before = read_results(tmp_path / "results.jsonl")
    assert main([*small, "--limit", "5", "--policies", "MT,AS", "--wait", "0,half"]) == 0
    _, after = read_results(tmp_path / "results.jsonl")
    known = {found.cell: found.scores for found in after}
    assert all(known[m.cell].items() >= m.scores.items() for m in before)
    items = [sum(len(found.scores) for found in cells) for cells in (before, after)]
    assert items[1] == items[0] + 1 + 3 * 5
    capsys.readouterr()


def test_a_kill_repeats_and_loses_nothing(tmp_path):
    """Killed twice without warning; the results equal those of a run that nobody disturbed."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    grid = [*GRID, "--no-controls", "--size", "16,32", "--limit", "5", "--batch", "1"]
    assert main([*grid, "--out", str(whole)]) == 0
    total = lines_of(whole / "results.jsonl")
    file = killed / "results.jsonl"
    command = [sys.executable, "-m", "attendre_core.cli", *grid, "--out", str(killed)]
    for share in (0.1, 0.4):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        deadline = time.monotonic() + 120
        while lines_of(file) < share * total and process.poll() is None:
            assert time.monotonic() < deadline, "nothing was measured in two minutes"
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "it was done before it could be killed"
        assert lines_of(file) < total
    # The worst moment: in the middle of a line.
    with file.open("ab") as opened:
        opened.write(b'{"policy": "MT", "kv": 1')
    assert main([*grid, "--out", str(killed)]) == 0
    lines = file.read_text().splitlines()
    assert len(lines) == len(set(lines)) == total
    assert read_results(file) == read_results(whole / "results.jsonl")
    assert (killed / "table.md").read_text() == (whole / "table.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policies", "LRB"], "'LRB' is not known"),
        (["--policies", "MT+c=0"], "FIFO"),
        (["--size", "16", "--wait", "16"], "expected N < M"),
        (["--baseline", "AS"], "baseline 'AS' is not measured"),
        (["--policies", "MT", "--baseline", "LFA-1"], "is not measured; there are MT, LFA-0+c=0."),
        (["--model", "nowhere"], "nowhere"),
        (["--chunk", "8"], "holds results with other settings: chunk 16, now 8"),
        (["--seed", "5"], "seed 0, now 5"),
        (["--skip", "5"], "--skip does not apply to this task. It uses --limit, --reading"),
    ],
)
def test_errors_say_what_to_do(tmp_path, capsys, more, message):
    start = [*GRID, "--no-controls", "--limit", "1", "--out", str(tmp_path)]
    assert main(start) == 0
    capsys.readouterr()
    assert main([*start, *more]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("attendre: error: ")
    assert message in error


def test_a_missing_baseline_is_found_before_anything_is_measured(tmp_path, capsys):
    grid = [*GRID, "--no-controls", "--out", str(tmp_path)]
    assert main([*grid, "--baseline", "AS"]) == 2
    assert "add it to --policies" in capsys.readouterr().err
    assert lines_of(tmp_path / "results.jsonl") == 1, "only the head"
    # One that an earlier run measured will do.
    assert main([*grid, "--policies", "AS"]) == 0
    assert main([*grid, "--policies", "MT", "--baseline", "AS", "--limit", "1"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    ("task", "control"), [("perplexity", "closed-book"), ("embedding", "closed-book")]
)
def test_a_control_that_means_nothing_is_refused(tmp_path, capsys, task, control):
    """Without a question, closed book would be full attention under another name."""
    text = tmp_path / "text.txt"
    text.write_text("some words")
    command = ["eval", task, "--model", "prefix-lm", "--data", str(text), "--policies", control]
    assert main([*command, "--out", str(tmp_path / "out")]) == 2
    assert f"the control {control!r} does not apply to this task" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["results.jsonl", "table.md", "score.svg", "results.parquet"])
def test_a_place_that_is_taken_is_no_traceback_and_loses_nothing(tmp_path, capsys, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    taken = tmp_path / name
    taken.mkdir()
    grid = [*GRID, "--no-controls", "--limit", "1", "--out", str(tmp_path)]
    assert main(grid) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("attendre: error: results: ")
    assert ("is no file" if name == "results.jsonl" else "cannot be written") in error
    before = b"" if name == "results.jsonl" else (tmp_path / "results.jsonl").read_bytes()
    taken.rmdir()
    assert main(grid) == 0
    assert (tmp_path / "results.jsonl").read_bytes().startswith(before)
    assert lines_of(tmp_path / "results.jsonl") == 3
    capsys.readouterr()


def test_a_full_disk_keeps_what_was_written(tmp_path, capsys):
    """A limit on the size of files is what a full disk looks like."""
    resource = pytest.importorskip("resource")
    grid = [*GRID, "--no-controls", "--limit", "6", "--batch", "1", "--out", str(tmp_path)]
    file = tmp_path / "results.jsonl"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        assert main(grid) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert "results.jsonl cannot be written any more" in capsys.readouterr().err
    whole = file.read_bytes()[: file.read_bytes().rfind(b"\n") + 1]
    assert whole.count(b"\n") > 1
    assert main(grid) == 0
    assert file.read_bytes().startswith(whole)
    lines = file.read_text().splitlines()
    assert len(lines) == len(set(lines)) == 1 + 2 * 6
    capsys.readouterr()


def test_data_is_asked_for(tmp_path, capsys):
    for task in ("triviaqa", "perplexity", "embedding"):
        assert main(["eval", task, "--model", "prefix-lm", "--out", str(tmp_path)]) == 2
        assert "with --data" in capsys.readouterr().err
    assert main(["eval", "needle", "--model", "prefix-lm", "--out", str(tmp_path / "new")]) == 2
    assert "tokenizer" in capsys.readouterr().err


def test_full_attention_that_does_not_fit_is_left_out_with_a_note(tmp_path, capsys, data):
    """A real decoder with a context of 512 predicts 600 tokens; who did not ask is told nothing."""
    command = [
        "eval", "perplexity", "--model", str(data("models/stories260K/stories260K.bin")),
        "--data", str(data("text/tinystories_10k.txt")), "--context-tokens", "600",
        "--chunk", "64", "--size", "128", "--policies", "MT", "--json",
    ]  # fmt: skip
    assert main([*command, "--out", str(tmp_path / "all")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "has 600 tokens, and the model was trained on at most 512" in answer["notes"][0]
    found = {row["policy"]: row["loss"][0] for row in answer["rows"]}
    assert set(found) == {"no-memory", "MT", "first-M", "random", "pinned"}
    assert found["MT"] < found["no-memory"] < found["first-M"]
    assert main([*command, "--no-controls", "--out", str(tmp_path / "few")]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == []
