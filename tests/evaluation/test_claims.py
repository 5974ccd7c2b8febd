"""Cells survive a file under any spelling; claims are decided on documents that chose nothing."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.sweep import Cell, Measured, ResultStore

PLACE = ("prefix-lm", "look-ahead", "repeat")


@pytest.fixture(scope="module")
def compact(beside: dict[str, ModuleType]) -> ModuleType:
    return beside["compact"]


def cell(system: str, kv: int, q: int, right: float, seed: int = 0) -> Measured:
    flags = np.random.default_rng(seed).random(200) < right
    scores = {
        f"{seed}:{i}": {"right": float(flag), "admitted": 0.5, "present": 0.25}
        for i, flag in enumerate(flags)
    }
    return Measured(Cell(system, kv, q), scores)


def table(*cells: Measured) -> dict[Cell, Measured]:
    return {one.cell: one for one in cells}


class TestCompactLines:
    def test_there_and_back(self, compact: ModuleType, tmp_path: Path) -> None:
        cells = [cell("MT", 32, 0, 0.3, 5), cell("LFA-0+c=-1", 32, 16, 0.8, 5)]
        place = compact.Place(*PLACE)
        file = tmp_path / "cells.jsonl"
        lines = [compact.line_of(place, 5, one) for one in cells]
        file.write_text("\n".join(lines) + "\n")
        back = compact.read_cells(file)
        assert back == {(place, one.cell): one for one in cells}
        assert [compact.line_of(place, 5, one) for one in back.values()] == lines
        assert compact.read_cells(file, seed=6) == {}

    def test_results_of_the_demo_become_lines(self, compact: ModuleType, tmp_path: Path) -> None:
        file = tmp_path / "results.jsonl"
        identity = {"model": "prefix-lm", "task": "look-ahead", "answers": "single", "seed": 3}
        found = cell("AS", 16, 0, 0.4, 3)
        with ResultStore(file, identity) as store:
            store.append(found.cell, list(found.scores.items()))
        (line,) = map(json.loads, compact.lines_of([file]))
        assert (line["system"], line["answers"], line["seed"]) == ("AS", "single", 3)
        assert line["right"].count("1") == sum(found.column("right").values())
        assert (line["admitted"], line["present"]) == (0.5, 0.25)

    @pytest.mark.parametrize(
        ("model", "system", "sigmas", "name"),
        [
            ("prefix-lm", "MT", None, "MT"),
            ("prefix-lm", "LFA-1e-3", 0.0, "LFA-1e-3+c=0"),
            ("prefix-lm", "LFA-1e-3", 1.0, "LFA-1e-3"),
            ("prefix-lm", "LFA-1e-3+c=0", None, "LFA-1e-3+c=0"),
            ("prefix-lm", "LRA-last", "paper", "LRA-last+c=2"),
            ("prefix-lm", "LRA-max", "paper", "LRA-max+c=1.5"),
            ("encoder-decoder", "LRA-last", 1.0, "LRA-last"),
            ("prefix-lm", "softmax-hold-LFA-0", -1.0, "LFA-0+softmax+hold+c=-1"),
            ("prefix-lm", "visible-per-head-softmax-LFA-0", -1.0,
             "LFA-0+softmax+c=-1+visible+per-head"),
            ("prefix-lm", "visible-softmax-LFA-0", -1.0, "attendre"),
            ("prefix-lm", "attendre", None, "attendre"),
            ("prefix-lm", "first-M", None, "first-M"),
        ],
    )  # fmt: skip
    def test_names_of_before(
        self, compact: ModuleType, model: str, system: str, sigmas: Any, name: str
    ) -> None:
        line = {"model": model, "system": system, "sigmas": sigmas}
        assert compact.name_of(line) == name

    def test_a_line_that_is_none(self, compact: ModuleType, tmp_path: Path) -> None:
        file = tmp_path / "notes.jsonl"
        for words in ("milk, eggs\n", "[1]\n", '{"model": "prefix-lm"}\n'):
            file.write_text(words)
            with pytest.raises(ConfigError, match="line 1: no measured cell"):
                compact.read_cells(file)


class TestClaims:
    @pytest.fixture(autouse=True)
    def module(self, beside: dict[str, ModuleType]) -> None:
        self.claims = beside["claims"].claims

    def test_the_policy_is_chosen_elsewhere(self) -> None:
        """LFA-0 is best where the choice is made, LRA-sum where it is checked: LFA-0 counts."""
        chosen = table(
            cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
            cell("LRA-sum", 32, 0, 0.5), cell("LFA-0+c=0", 32, 0, 0.9),
        )  # fmt: skip
        checked = table(
            cell("MT", 32, 0, 0.1, 1), cell("AS", 32, 0, 0.5, 1),
            cell("LRA-sum", 32, 0, 0.9, 1), cell("LFA-0+c=0", 32, 0, 0.3, 1),
        )  # fmt: skip
        first, second = self.claims(chosen, checked, 16)
        assert first.systems == ("AS", "MT")
        assert first.verdict == "holds"
        assert second.systems == ("LFA-0+c=0", "AS")
        assert second.verdict == "fails"
        assert second.shares[0] == pytest.approx(0.3, abs=0.1)

    def test_what_is_ours_is_not_the_papers(self, beside: dict[str, ModuleType]) -> None:
        ours = beside["study"].PLAIN
        cells = table(
            cell("AS", 32, 0, 0.2), cell(ours, 32, 0, 0.9), cell("LRA-sum+c=0", 32, 0, 0.5)
        )
        (claim,) = self.claims(cells, cells, 16)
        assert claim.systems == ("LRA-sum+c=0", "AS")

    def test_size_and_waiting(self) -> None:
        flags = np.random.default_rng(1).permutation(200) < 100
        same = {
            f"0:{i}": {"right": float(flag), "admitted": 1.0, "present": 1.0}
            for i, flag in enumerate(flags)
        }
        cells = table(
            cell("MT", 256, 0, 0.5), Measured(Cell("LFA-0", 32, 0), same),
            cell("LFA-0", 32, 16, 0.9), cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
        )  # fmt: skip
        found = {c.words: c for c in self.claims(cells, cells, 16)}
        assert set(found) == {
            "sinks beat FIFO at M = 32", "attention beats sinks at M = 32",
            "M = 32 beats FIFO at M = 256", "waiting for N = 16 helps at M = 32",
        }  # fmt: skip
        assert found["M = 32 beats FIFO at M = 256"].verdict == "open"
        assert found["waiting for N = 16 helps at M = 32"].verdict == "holds"

    def test_nothing_without_the_cells(self) -> None:
        only = table(cell("LFA-0", 32, 0, 0.5))
        assert self.claims(only, only, 16) == []
