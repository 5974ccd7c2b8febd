"""docs/systems.md names what exists, and its figures are those of the record."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import intervals

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/systems.md").read_text(encoding="utf-8")
#: The sign of negative numbers on the page.
MINUS = "\N{MINUS SIGN}"
ROWS = [
    [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))]
    for line in PAGE.partition("## What training changes")[0].splitlines()
    if line.startswith("| ") and not line.startswith("| system")
]
RECORDS = [
    json.loads(line)
    for line in (ROOT / "docs/results/systems.jsonl").read_text(encoding="utf-8").splitlines()
]


def test_every_row_is_complete() -> None:
    assert len(ROWS) >= 15
    for row in ROWS:
        assert len(row) == 5, row
        assert all(row), row


def test_each_test_that_is_named_exists() -> None:
    folders = [ROOT / "tests", ROOT / "conformance", ROOT / "backends" / "tests"]
    files = [file for folder in folders for file in folder.rglob("test_*.py")]
    defined = {
        name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)
    }
    for row in ROWS:
        named = re.findall(r"`(test_\w+)`", row[2])
        assert named, f"{row[0]}: no test"
        assert set(named) <= defined, f"{row[0]}: {set(named) - defined} do not exist"


def test_each_preset_that_is_named_is_one() -> None:
    names = [name for row in ROWS for name in re.findall(r'at\.preset\("([^"]+)"\)', row[1])]
    assert names
    for name in names:
        at.preset(name)


def test_each_example_that_is_named_has_its_functions() -> None:
    found = 0
    for row in ROWS:
        for names, file in re.findall(r"((?:`\w+`(?:, )?)+) in `(docs/examples/\w+\.py)`", row[1]):
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            named = set(re.findall(r"`(\w+)`", names))
            assert named <= defined, f"{row[0]}: {named - defined} are not in {file}"
            found += len(named)
    assert found >= 7


def test_public_names_exist() -> None:
    for row in ROWS:
        for owner, name in re.findall(r"`(Stream|Model)\.(\w+)", row[1]):
            assert callable(getattr(getattr(at, owner), name))
        for name in re.findall(r"`([A-Z]\w+)(?:\([^`]*\))?`", row[1]):
            assert hasattr(at, name), name


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["system"])
def test_figures_are_those_of_the_record(record: dict[str, float]) -> None:
    text = f"{record['value']:.{record.get('digits', 3)}f}"
    if record["low"] is not None:
        signed = "+" if "gain" in str(record["measure"]) else ""
        low, high = (f"{record[end]:{signed}.3f}".replace("-", MINUS) for end in ("low", "high"))
        text = f"{record['value']:{signed}.3f} [{low}, {high}]".replace("-", MINUS)
    assert text in PAGE, f"{text} is not on the page"


def test_the_table_of_training_is_that_of_the_record() -> None:
    file = ROOT / "docs/results/learned_memories.jsonl"
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    table = [line for line in PAGE.splitlines() if re.match(r"\| [^|]+ \| (torch|jax) \|", line)]
    assert table == list(trained(lines))
    assert all(line["seconds"] < 180 for line in lines)  # of all threads


def trained(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the rows: shares before and after, and the differences of the same 400 answers."""
    answers = {
        (line["backend"], name): np.array([int(x) for x in right])
        for line in lines
        for name, right in line["right"].items()
    }
    for library, name in answers:
        if not name.endswith(", after"):
            continue
        system = name.removesuffix(", after")
        before, after = (answers[library, f"{system}, {when}"] for when in ("before", "after"))
        others = (before, answers[library, "FIFO, 16 entries"],
                  answers[library, "KeyDiff, 16 entries"])  # fmt: skip
        gaps = []
        for other in others:
            gap = intervals.difference(after, other)
            shown = f"{100 * gap.value:+.1f} [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
            gaps.append(shown.replace("-", MINUS))
        shares = f"{100 * before.mean():.1f} % | {100 * after.mean():.1f} %"
        yield f"| {system} | {library} | {shares} | {' | '.join(gaps)} |"


def test_learned_figures_are_those_of_the_record() -> None:
    lines = (ROOT / "docs/results/learned_memories.jsonl").read_text(encoding="utf-8").splitlines()
    shares: dict[str, dict[str, str]] = {"torch": {}, "jax": {}}
    for line in map(json.loads, lines):
        shares[line["backend"]] |= {
            name: f"{100 * right.count('1') / len(right):.1f} %"
            for name, right in line["right"].items()
        }
    rows = {row[0].split(" (")[0]: row[3] for row in ROWS}
    shown = {
        "Expire-Span": ("Expire-Span, before", "Expire-Span, after", "KeyDiff, 16 entries"),
        "dynamic context pruning": ("context pruning, before", "context pruning, after"),
        "Memformer": ("slots of Memformer, before", "slots of Memformer, after"),
        "Token Turing Machine": ("slots of TokenTuring, before", "slots of TokenTuring, after"),
        "MART": ("slots of MART, before", "slots of MART, after", "the last chunk alone"),
        "ICAE": ("slots of ICAE, before", "slots of ICAE, after"),
    }
    for system, names in shown.items():
        for name in names:
            assert shares["torch"][name] in rows[system], (system, name)
    share = shares["jax"]["context pruning, after"]
    assert f"{share} (JAX)" in rows["dynamic context pruning"]


def test_figures_of_negatives_are_those_of_the_record() -> None:
    lines = (ROOT / "docs/results/focused.jsonl").read_text(encoding="utf-8").splitlines()
    (row,) = (row for row in ROWS if row[0].startswith("Focused Transformer"))
    for line in lines:
        right = json.loads(line)["right"]
        for seen in (1, 4):
            answers = right[f"trained with {seen}, 8 in memory"]
            assert f"{100 * answers.count('1') / len(answers):.1f} %" in row[3]
