"""The page about policies says what the records say, and its commands made the records."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attendre_core.cli import build_parser, main
from attendre_core.cli.eval_cells import cells_for, names_of
from attendre_core.cli.eval_tasks import task_of
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.sweep import Cell, ResultStore

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"

COMMANDS = r"""# a causal decoder -> attendre-causal
attendre eval multi-key --model m.gguf --context-tokens 512 --size 128 --chunk 64 --top-k all \
    --policies MT,AS,attendre-causal --mode bounded,oracle --out records/keys
attendre eval multi-key --model m.gguf --context-tokens 512 --size 192 --chunk 64 --top-k all \
    --policies AS --no-controls --out records/keys
# both ways -> attendre
attendre eval embedding --model e --data text.txt --size 64 --policies MT,attendre --out emb
"""


@pytest.fixture(scope="module")
def writing(beside: dict[str, ModuleType]) -> Any:
    return beside["write_policies"]


@pytest.fixture(scope="module")
def policies(beside: dict[str, ModuleType]) -> Any:
    return beside["policies"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records of made-up scores: attendre-causal beats AS, which beats MT; oracles are better."""
    (tmp_path / "commands.txt").write_text(COMMANDS)
    scores = {
        ("MT", 128): (-4.0, 128.0), ("AS", 128): (-3.0, 128.0), ("AS", 192): (-1.0, 192.0),
        ("attendre-causal", 128): (-2.0, 192.0), ("MT+oracle", 128): (-3.5, 128.0),
        ("AS+oracle", 128): (-2.5, 128.0), ("attendre-causal+oracle", 128): (-2.6, 128.0),
        ("random", 128): (-5.0, 128.0),
    }  # fmt: skip
    identity = {"task": "multi-key", "model": "m.gguf", "chunk": 64}
    with ResultStore(tmp_path / "keys.jsonl", identity) as store:
        store.append(Cell("full", 0, 0), [(str(i), {"log_likelihood": -0.5}) for i in range(20)])
        for (policy, kv), (value, entries) in scores.items():
            store.append(Cell(policy, kv, 0), [
                (str(i), {
                    "log_likelihood": value - i % 2, "entries": entries,
                    "seconds": 1.5 if policy == "attendre-causal" else 1.0,
                })
                for i in range(20)
            ])  # fmt: skip
    with ResultStore(tmp_path / "emb.jsonl", {"task": "embedding", "chunk": 32}) as store:
        for policy, value in (("MT", 0.9), ("attendre", 0.8)):
            for count, kv in ((20, 64), (5, 32)):
                cell = Cell(policy, kv, kv // 2 if policy == "attendre" else 0)
                store.append(cell, [(str(i), {"cosine": value}) for i in range(count)])
    return tmp_path


def test_one_row_for_each_kind_of_model(policies: Any, folder: Path) -> None:
    head, _, causal, both = policies.which(folder).splitlines()
    assert head.startswith("| your model | system | entries held per layer |")
    assert causal == (
        "| a causal decoder | `attendre-causal` | M + S | better 1, alike 0, worse 0 | "
        "better 1, alike 0, worse 0 | no such case was found | 20 |"
    )
    # Of five items nothing is said.
    assert both == (
        "| both ways | `attendre` | M + S, and M/2 waiting queries | better 0, alike 1, worse 1 | "
        "better 0, alike 1, worse 1 | emb, M = 64 (MT is better) | 5 |"
    )


def test_bounded_beside_oracle(policies: Any, folder: Path) -> None:
    lines = policies.oracle_table("keys", folder).splitlines()
    rows = {line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]] for line in lines
            if line.startswith("| `")}  # fmt: skip
    assert list(rows) == ["`MT`", "`AS`", "`attendre-causal`", "`random`"]
    minus = "\N{MINUS SIGN}"
    assert rows["`attendre-causal`"] == [
        "20", f"{minus}2.50", f"{minus}3.10", f"**{minus}0.60 ({minus}0.60 to {minus}0.60)**",
        "**+1.00 (+1.00 to +1.00)**", f"**{minus}1.00 ({minus}1.00 to {minus}1.00)**", "192",
        "1.50",
    ]  # fmt: skip
    assert rows["`AS`"][3:] == ["**+0.50 (+0.50 to +0.50)**", "", "", "128", "1.00"]
    assert rows["`random`"][2:4] == ["", ""]
    assert lines[-1] == f"Without a size: full {minus}0.50."


def test_the_order_of_policies(policies: Any, folder: Path) -> None:
    *_, row = policies.ranks(folder).splitlines()
    assert row == "| keys | 128 | 3 | `attendre-causal` | `AS` | 0.50 |"
    assert policies.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert policies.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # With ties: ranks 0, 1.5, 1.5, 3 against 0, 1, 2, 3.
    assert policies.spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)


def test_the_standings_are_ranks_in_both_modes(policies: Any, folder: Path) -> None:
    *_, first, second, third = policies.standings(folder).splitlines()
    assert first == "| `attendre-causal` | 1 | 1.0 | 1.0 | 2.0 | 2.0 |"
    assert second.startswith("| `AS` | 1 | 2.0 | 2.0 | 1.0 | 1.0 |")
    assert third.startswith("| `MT` | 1 | 3.0 | 3.0 | 3.0 |")


def test_a_page_that_was_changed_by_hand_is_noticed(writing: Any, folder: Path) -> None:
    empty = "".join(
        f"<!-- begin {name} -->\n<!-- end {name} -->\n"
        for name in ("which", "ranks", "standings", "keys", "commands")
    )
    page = writing.written(empty, folder)
    assert writing.written(page, folder) == page
    assert "attendre eval multi-key --model m.gguf" in page
    assert page.count("```") == 4
    changed = page.replace("| 192 |", "| 128 |")
    assert changed != page
    assert writing.written(changed, folder) == page


def test_a_command_and_what_it_writes(policies: Any, byte_llama: Path, tmp_path: Path) -> None:
    """What the next test checks for the records of the page, for a record that is made here."""
    command = (
        f"attendre eval multi-value --model {byte_llama} --context-tokens 250 --limit 2 "
        "--new-tokens 0 --size 64 --chunk 32 --top-k all --policies AS,H2O --mode bounded,oracle "
        f"--out {tmp_path / 'values'}"
    )
    assert main(shlex.split(command)[1:]) == 0
    (tmp_path / "values" / "results.jsonl").rename(tmp_path / "values.jsonl")
    (tmp_path / "commands.txt").write_text(f"# decoder -> H2O\n{command}\n")
    record = policies.read_record("values", tmp_path)
    assert planned_by(command, record.identity, load_tiny("prefix-lm")) == set(record.cells)
    with pytest.raises(AssertionError):
        planned_by(command.replace("250", "251"), record.identity, load_tiny("prefix-lm"))
    assert "`H2O`" in policies.which(tmp_path)
    assert "values, M = 64" in policies.oracle_table("values", tmp_path)


def test_the_page_is_that_of_the_records(writing: Any) -> None:
    if not writing.PAGE.exists():
        pytest.skip("docs/policies.md was not written yet")
    page = writing.PAGE.read_text(encoding="utf-8")
    assert page == writing.written(page), "run docs/results/write_policies.py"
    shown = {match[2] for match in writing.BLOCK.finditer(page)}
    assert {"which", "ranks", "standings", "commands"} <= shown


def test_the_commands_made_the_records(policies: Any) -> None:
    """Each record has the settings and the cells of its commands, and no others."""
    if not (policies.HERE / "commands.txt").exists():
        pytest.skip("the records of docs/policies.md are not there yet")
    found = policies.read_commands()
    assert {file.stem for file in policies.HERE.glob("*.jsonl")} <= {c.record for c in found}
    model = load_tiny("prefix-lm")
    for name in {command.record for command in found}:
        record = policies.read_record(name)
        planned: set[Cell] = set()
        for command in found:
            if command.record == name:
                planned |= planned_by(command.text, record.identity, model)
        assert planned - set(record.cells) <= {Cell("full", 0, 0)}, name
        assert set(record.cells) <= planned, name


def planned_by(text: str, identity: dict[str, Any], model: Any) -> set[Cell]:
    """Check the settings of a command against those of a record; return the cells it measures."""
    given = build_parser().parse_args(shlex.split(text)[1:])
    task, chunk, top_k = task_of(given)
    settings = task.identity()
    settings.pop("sha256", None)  # The data need not be here.
    settings |= {"task": task.name, "model": Path(given.model).name, "chunk": chunk, "top_k": top_k}
    assert settings.items() <= identity.items(), text
    controls = () if given.no_controls else task.controls
    # Which model reads does not matter: sizes are numbers of entries.
    assert not given.equal_bytes, "sizes that depend on the model cannot be checked"
    return set(
        cells_for(
            model, names_of(given.policies), controls, [int(size) for size in given.size],
            given.wait, chunk, top_k, modes=given.mode or ("bounded",),
        )
    )  # fmt: skip


def test_what_was_written(beside: dict[str, ModuleType], tmp_path: Path) -> None:
    """Systems are compared with sinks of as many entries, and ``+inside`` with the same system."""
    cells = {
        "AS": (0.5, 128.0), "AS+inside": (0.6, 128.0), "AS+visible": (0.4, 192.0),
        "attendre-causal": (0.3, 192.0),
    }  # fmt: skip
    with ResultStore(tmp_path / "text.jsonl", {"task": "continuation", "chunk": 64}) as store:
        for policy, (repeated, entries) in cells.items():
            score = {"repeated": repeated, "copied": 0.0, "entries": entries, "seconds": 1.0}
            store.append(Cell(policy, 128, 0), [(str(i), score) for i in range(20)])
    lines = beside["generated"].written_table("text", tmp_path).splitlines()[2:]
    compared = {row.split("|")[1].strip(): row.split("|")[3].strip() for row in lines}
    assert compared == {
        "`AS`": "", "`AS+inside`": "`AS`", "`AS+visible`": "`AS`",
        "`attendre-causal`": "`AS+visible`",
    }  # fmt: skip
    assert "**+10 (+10 to +10)**" in lines[1]
    assert beside["write_policies"].block("text", tmp_path).splitlines()[2:] == lines
