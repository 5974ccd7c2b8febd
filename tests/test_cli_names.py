"""One name, one system: what eval and demo measure is what `preset` and `load` make."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import attendre_core as at
from attendre_core.cli import build_parser, main
from attendre_core.cli.demo import plan_of
from attendre_core.cli.eval_cells import POLICIES, cells_for, names_of
from attendre_core.evaluation import load_tiny, system
from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.sweep import Cell
from attendre_core.presets import CONTROL_PRESETS, PRESETS, parse
from attendre_core.zoo.memories import shape_of
from attendre_core.zoo.model import Model

NAMES = (*PRESETS, *CONTROL_PRESETS)
SIZED = {"chunk": 16, "top_k": 16}


@pytest.fixture(scope="module")
def both_ways() -> Model:
    return load_tiny("prefix-lm")


@pytest.fixture(scope="module")
def causal(both_ways: Model) -> Model:
    return Model(both_ways.architecture, both_ways.params, attention="causal")


def cells(model: Model, *texts: str, sizes: Any = (32,), waits: Any = None) -> list[Cell]:
    return cells_for(model, names_of(texts), (), sizes, waits, 16, 16)


def memory_of(cell: Cell) -> at.MemoryConfig:
    return system(cell.policy, cell.kv, cell.q, **SIZED).memory


@pytest.mark.parametrize("name", NAMES)
def test_eval_measures_what_a_name_means(name: str, both_ways: Model) -> None:
    (cell,) = cells(both_ways, name.upper())
    expected = at.preset(name, 32, **SIZED)
    assert memory_of(cell) == expected
    assert (cell.policy, cell.kv, cell.q) == (name, 32, expected.q_size)
    memory = both_ways.with_memory(f"{name}+chunk=16+k=16:32").memory
    assert memory == expected


@pytest.mark.parametrize("name", NAMES)
def test_demo_measures_what_a_name_means(name: str) -> None:
    plan = plan_of(build_parser().parse_args(["demo", "--policies", name.lower()]))
    assert {(cell.kv, cell.q) for cell in plan.cells} >= {(16, 0), (64, 32)}
    for cell in plan.cells:
        assert memory_of(cell) == at.preset(name, cell.kv, cell.q, **SIZED)


@pytest.mark.parametrize(
    "text",
    [
        "LRA-sum+softmax+c=0",
        "lfa-0.001+quota=0.5+wait=half",
        "attendre+wait=0",
        "LFA-0+softmax+c=-1+visible+wait=8",
        "MT+pin=0-4+sinks=2+recent=3+k=8+chunk=8",
        "H2O+per-token:48",
        "random+seed=3",
    ],
)
def test_eval_measures_options(text: str, both_ways: Model) -> None:
    (cell,) = cells(both_ways, text)
    full = parse(text).with_defaults(32, chunk=16, k=16)
    assert memory_of(cell) == at.preset(str(full))


def test_labels_leave_out_what_has_a_column() -> None:
    assert label_of("lra-sum+c=1+wait=8:64") == "LRA-sum"
    assert label_of("LFA-0+softmax+c=-1+visible") == "attendre"
    assert label_of("LRA-sum+k=8") == "LRA-sum+k=8"
    assert [label_of(name) for name in ("FULL", "Random")] == ["full", "random"]


def test_the_default_fits_the_model(both_ways: Model, causal: Model) -> None:
    looking = cells(both_ways)
    assert looking == [Cell(name, 32, 16) for name in (*POLICIES, "attendre")]
    assert cells(causal) == [Cell(name, 32, 0) for name in (*POLICIES, "attendre-causal")]
    assert cells(both_ways, waits=[0])[-1] == Cell("attendre", 32, 0)


def test_sizes_and_waits_make_a_grid(both_ways: Model) -> None:
    found = cells(both_ways, "MT", "attendre", sizes=[32, 64], waits=[0, "half", 40])
    pairs = [(32, 0), (32, 16), (64, 0), (64, 32), (64, 40)]
    assert found == [Cell(name, *pair) for pair in pairs for name in ("MT", "attendre")]
    # What a name says itself is not varied.
    own = cells(both_ways, "MT+wait=4", "AS:48", sizes=[32, 64], waits=[0])
    assert own == [Cell("MT", 32, 4), Cell("AS", 48, 0), Cell("MT", 64, 4)]
    with pytest.raises(at.ConfigError, match="--wait 0 or --wait half"):
        cells(both_ways, "MT", waits=[32])


def test_controls_are_measured_at_every_size(both_ways: Model) -> None:
    names = names_of(["MT", "full"])
    found = cells_for(both_ways, names, ("random", "closed-book"), [32, 64], None, 16, 16)
    assert found == [
        Cell("full", 0, 0), Cell("closed-book", 0, 0), Cell("MT", 32, 0), Cell("random", 32, 0),
        Cell("MT", 64, 0), Cell("random", 64, 0),
    ]  # fmt: skip
    assert cells(both_ways, "pinned", waits=["half"]) == [Cell("pinned", 32, 16)]


def test_bytes_are_those_of_the_model(both_ways: Model) -> None:
    (cell,) = cells(both_ways, "attendre", sizes=["64KiB"])
    memory = both_ways.with_memory("attendre+chunk=16+k=16:64KiB").memory
    assert memory is not None
    assert cell == Cell("attendre", memory.kv_size, memory.q_size)


def held(model: Model, cell: Cell) -> int:
    return memory_of(cell).nbytes(**shape_of(model.reading_part, "float32"))


@pytest.mark.parametrize("baseline", [None, "MT", "attendre", "H2O+wait=4"])
def test_at_equal_bytes_every_memory_fills_what_the_baseline_holds(
    baseline: str | None, both_ways: Model
) -> None:
    names = ("MT", "AS+wait=half", "H2O+wait=4", "attendre", "LRA-sum+visible+k=2")
    reference = None if baseline is None else names_of([baseline])[0]
    found = cells_for(
        both_ways, names_of(names), ("random", "closed-book"), [32, 64], None, 16, 16,
        equal_bytes=True, baseline=reference,
    )  # fmt: skip
    assert found[0] == Cell("closed-book", 0, 0)
    for size, group in ((32, found[1:7]), (64, found[7:])):
        labels = [label_of(name) for name in (*names, "random")]
        assert [cell.policy for cell in group] == labels
        own = group[labels.index(label_of(baseline or "MT"))]
        assert own.kv == size
        budget = held(both_ways, own)
        for cell, text in zip(group, (*names, "random"), strict=True):
            assert held(both_ways, cell) <= budget
            wait = f"+wait={own.q}" if text == "random" else ""
            larger = at.preset(f"{text}{wait}+chunk=16", kv_size=cell.kv + 1)
            assert larger.nbytes(**shape_of(both_ways.reading_part, "float32")) > budget


@pytest.mark.parametrize("baseline", ["full", "pinned"])
def test_a_control_as_baseline_leaves_the_size_to_a_plain_memory(
    baseline: str, both_ways: Model
) -> None:
    found = cells_for(
        both_ways, names_of(["MT", "attendre"]), ("pinned",), [32], None, 16, 16,
        equal_bytes=True, baseline=names_of([baseline])[0],
    )  # fmt: skip
    assert found[0] == Cell("MT", 32, 0)
    assert found[-1] == Cell("pinned", 32, 0)
    assert found[1].kv < 32


def test_names_with_a_size_keep_it_at_equal_bytes(both_ways: Model) -> None:
    names = names_of(["MT", "attendre:48"])
    found = cells_for(both_ways, names, (), [32, 64], None, 16, 16, equal_bytes=True)
    assert found == [Cell("MT", 32, 0), Cell("attendre", 48, 24), Cell("MT", 64, 0)]


def test_a_chunk_that_alone_takes_all_bytes_is_said(both_ways: Model) -> None:
    names = names_of(["MT", "H2O"])
    with pytest.raises(at.ConfigError, match=r"gives H2O the \d+ bytes that MT takes, too few"):
        cells_for(both_ways, names, (), [8], None, 16, 16, equal_bytes=True)


def test_a_system_that_looks_ahead_on_a_causal_model(causal: Model) -> None:
    with pytest.raises(at.ConfigError, match="Use 'attendre-causal"):
        cells(causal, "attendre")


@pytest.fixture
def own_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_measured_policy.py").write_text(
        "import attendre_core as at\nclass Mine(at.FIFO):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    return "own_measured_policy:Mine"


def test_a_policy_of_ones_own(own_policy: str, capsys: pytest.CaptureFixture[str]) -> None:
    few = ("--limit", "2", "--size", "32", "--no-controls", "--out", "results", "--json")
    names = ("--policies", f"MT,{own_policy},{own_policy}+wait=8")
    assert main(["eval", "synthetic", "--model", "prefix-lm", *few, *names]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    found = {row["memory"]: row["right"] for row in rows}
    mine = f"{own_policy}+k=16+chunk=16:32"
    assert set(found) == {
        "MT+k=16+chunk=16:32", mine, f"{own_policy}+wait=8+k=16+chunk=16:32",
    }  # fmt: skip
    assert found[mine] == found["MT+k=16+chunk=16:32"]
    few = ("--documents", "2", "--policies", own_policy, "--json")
    assert main(["demo", *few]) == 0
    rows = json.loads(capsys.readouterr().out)["tables"][0]["rows"]
    assert {row["policy"] for row in rows} == {own_policy}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "--policies", "MT,NONE"], "'NONE' is not known"),
        (["demo", "--policies", "MT:64"], "'MT:64' says M or N"),
        (["demo", "--policies", "MT+wait=4"], "they are the columns of the table"),
        (["eval", "--policies", "NONE"], "'NONE' is not known"),
        (["eval", "--policies", "MT+softmax"], "+softmax does not apply to FIFO"),
        (
            ["eval", "--policies", "full+softmax"],
            "the control 'full' has neither options nor a size",
        ),
        (["eval", "--size", "few"], "the size is 'few'"),
        (["eval", "--policies", "no_such:Policy"], "there is no module no_such"),
        (["eval", "--policies", "MT", "--baseline", "LRU"], "the baseline 'LRU' is not measured"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    more = (
        ["synthetic", "--model", "prefix-lm", "--out", str(tmp_path)] if command == "eval" else []
    )
    assert main([command, *more, *rest]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
