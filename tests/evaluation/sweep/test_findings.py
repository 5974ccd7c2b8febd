"""Sentences: every figure is measured, and nothing is said that was not."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

from attendre_core.evaluation.sweep import Cell, Measured
from attendre_core.evaluation.sweep.findings import best, findings, main_findings


def cell(
    system: str, kv: int, q: int, right: float, admitted: float = 1.0, present: float = 1.0
) -> Measured:
    """Make a cell in which a share of 100 documents is answered right."""
    scores = {
        str(i): {"right": float(i < 100 * right), "admitted": admitted, "present": present}
        for i in range(100)
    }
    return Measured(Cell(system, kv, q), scores)


def some_cells() -> list[Measured]:
    return [
        cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.2),
        cell("LRA-sum", 32, 0, 0.6), cell("LFA-0+c=0", 32, 0, 0.7),
        cell("MT", 256, 0, 0.5), cell("LFA-0+c=0", 32, 16, 0.9, present=0.25),
        cell("closed-book", 0, 0, 0.03),
    ]  # fmt: skip


def said(measured: Sequence[Measured]) -> str:
    return "\n".join(findings(measured, 16))


def test_figures_are_those_measured() -> None:
    text = said(some_cells())
    assert "FIFO (MT) answers 10 %, four attention sinks (AS) 20 %" in text
    assert "LFA-0+c=0, 70 %: +50 points [" in text
    assert "LFA-0+c=0 with 32 entries answers 70 %, FIFO with 256 entries 50 %" in text
    assert "(M = 32) takes the best such policy from 70 % (LFA-0+c=0) to 90 %" in text
    assert "25 % of their own chunk is still there" in text
    assert "the question alone 3 %; a guess is right in 3 % of cases" in text


def test_what_we_recommend_is_compared() -> None:
    text = said([*some_cells(), cell("attendre", 32, 16, 1.0)])
    assert "attendre, answers 100 % at M = 32 and N = 16: +10 points [" in text
    assert "against LFA-0+c=0; 100 % of a chunk is there" in text
    assert "attendre" not in said(some_cells())


def test_chance_is_called_chance() -> None:
    noisy = np.random.default_rng(0).random(100) < 0.5
    top = cell("LFA-0", 32, 0, 0.5)
    for score, flag in zip(top.scores.values(), noisy, strict=True):
        score["right"] = float(flag)
    text = said([cell("MT", 32, 0, 0.1), cell("AS", 32, 0, 0.5), top])
    assert "(may be chance)" in text
    assert "(may be chance)" not in said(some_cells())


def test_nothing_is_said_without_the_cells_for_it() -> None:
    assert said([cell("first-M", 32, 0, 0.5, admitted=0.0)]) == ""
    assert best([cell("MT", 32, 0, 0.5)]) is None


def test_names_that_froze_are_named() -> None:
    text = said([
        cell("LRA-sum", 16, 0, 0.5, admitted=0.08), cell("LRA-sum", 32, 0, 0.5, admitted=0.9),
        cell("LFA-0", 32, 0, 0.5, admitted=0.6), cell("first-M", 32, 0, 0.5, admitted=0.0),
        cell("LFA-1e-3", 32, 0, 0.5, admitted=0.2),
    ])  # fmt: skip
    assert "because few new entries get in: LRA-sum (8 %), LFA-1e-3 (20 %)." in text
    assert "No memory froze" not in text


def test_nothing_froze() -> None:
    text = said([cell("MT", 32, 0, 0.5), cell("LFA-0", 32, 0, 0.5, admitted=0.6)])
    assert "No memory froze: the lowest share of new entries let in is LFA-0's, 60 %." in text


@pytest.mark.parametrize("size", [(32, 0), (64, 0), (32, 16)])
def test_a_lower_c_is_compared_at_two_chunks(size: tuple[int, int]) -> None:
    text = said([cell("LFA-0", *size, 0.2, admitted=0.1), cell("LFA-0+c=0", *size, 0.7)])
    words = (
        r"LFA-0 answers 70 % instead of 20 % at M = 32, \+50 points .*: 100 % .* instead of 10 %"
    )
    assert bool(re.search(words, text)) == (size == (32, 0))


def test_the_main_sentences_are_some_of_all() -> None:
    more = [cell("attendre", 32, 16, 1.0), cell("attendre", 64, 32, 1.0)]
    more += [cell(name, 64, q, 0.4) for name in ("MT", "AS", "LFA-0+c=0") for q in (0, 32)]
    every, main = findings([*some_cells(), *more], 16), main_findings([*some_cells(), *more], 16)
    assert [sentence for sentence in every if sentence in main] == main
    starts = ("With room for 32", "Choice against", "What we recommend", "No memory", "Controls")
    assert [sentence.startswith(start) for sentence, start in zip(main, starts, strict=True)] == (
        [True] * 5
    )
    assert len(every) > len(main)
