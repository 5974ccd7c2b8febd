"""Records survive a file, and claims are decided on documents that chose nothing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from attendre_core.errors import ConfigError
from attendre_core.evaluation.accuracy import Outcome
from attendre_core.evaluation.claims import claims
from attendre_core.evaluation.grid import Cell, Measured
from attendre_core.evaluation.records import from_record, read_records, to_record, write_records
from attendre_core.evaluation.tables import Table, tables_of


def cell(system: str, kv: int, q: int, right: float, seed: int = 0) -> Measured:
    flags = np.random.default_rng(seed).random(200) < right
    sigmas = None if system in ("MT", "AS") else 0.0
    place = Cell("prefix-lm", "look-ahead", "repeat", system, kv, q, sigmas)
    return Measured(place, Outcome(flags, np.full(200, 0.5), np.full(200, 0.25)))


def table(*cells: Measured) -> Table:
    (found,) = tables_of(cells)
    return found


class TestRecords:
    def test_there_and_back(self, tmp_path: Path) -> None:
        cells = [cell("MT", 32, 0, 0.3), cell("LFA-0", 32, 16, 0.8)]
        file = tmp_path / "cells.jsonl"
        write_records(file, cells[:1])
        write_records(file, cells[1:])
        back = read_records(file)
        assert [m.cell for m in back] == [m.cell for m in cells]
        for one, other in zip(back, cells, strict=True):
            assert np.array_equal(one.outcome.right, other.outcome.right)
            assert one.outcome.admitted.mean() == 0.5
            assert one.outcome.present.mean() == 0.25
            assert to_record(one) == to_record(other)

    def test_a_line_that_is_none(self) -> None:
        with pytest.raises(ConfigError, match="is no measured cell"):
            from_record({"model": "prefix-lm"})


class TestClaims:
    def test_the_policy_is_chosen_elsewhere(self) -> None:
        """LFA-0 is best where the choice is made, LRA-sum where it is checked: LFA-0 counts."""
        chosen = table(
            cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
            cell("LRA-sum", 32, 0, 0.5), cell("LFA-0", 32, 0, 0.9),
        )  # fmt: skip
        checked = table(
            cell("MT", 32, 0, 0.1, 1), cell("AS", 32, 0, 0.5, 1),
            cell("LRA-sum", 32, 0, 0.9, 1), cell("LFA-0", 32, 0, 0.3, 1),
        )  # fmt: skip
        first, second = claims(chosen, checked, 16)
        assert first.systems == ("AS", "MT")
        assert first.verdict == "holds"
        assert second.systems == ("LFA-0", "AS")
        assert second.verdict == "fails"
        assert second.shares[0] == pytest.approx(0.3, abs=0.1)

    def test_size_and_waiting(self) -> None:
        cells = [
            cell("MT", 256, 0, 0.5), cell("LFA-0", 32, 0, 0.5, 1), cell("LFA-0", 32, 16, 0.9),
            cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
        ]  # fmt: skip
        found = {c.words: c for c in claims(table(*cells), table(*cells), 16)}
        assert set(found) == {
            "sinks beat FIFO at M = 32", "attention beats sinks at M = 32",
            "M = 32 beats FIFO at M = 256", "waiting for N = 16 helps at M = 32",
        }  # fmt: skip
        assert found["M = 32 beats FIFO at M = 256"].verdict == "open"
        assert found["waiting for N = 16 helps at M = 32"].verdict == "holds"

    def test_nothing_without_the_cells(self) -> None:
        only = table(cell("LFA-0", 32, 0, 0.5))
        assert claims(only, only, 16) == []
