"""Writes the measured figures into README and docs: ``python docs/results/write_tables.py``.

Each figure is between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``, and
comes from the records beside this file. A test compares both.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import five_lines
import front_numbers
import meetings
import study
import tables
from study_results import Study

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "docs/evaluation.md", "docs/evaluation_tables.md", "docs/evaluation_cells.md")
BLOCK = re.compile(r"(<!-- begin ([\w-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def blocks() -> dict[str, Callable[[], str]]:
    """Return what can be written, by name."""
    found = Study()
    return {
        "five-lines": lambda: five_lines.five_lines(found),
        "numbers": front_numbers.numbers,
        "demo": tables.demo,
        "models": tables.models,
        "choice": lambda: tables.choice(found),
        "best-c": lambda: tables.best_c(found),
        "claims": lambda: tables.claim_table(found, "repeat"),
        "claims-single": lambda: tables.claim_table(found, "single"),
        "claims-at-papers-c": lambda: tables.paper_claim_table(found, "repeat"),
        "claims-at-papers-c-single": lambda: tables.paper_claim_table(found, "single"),
        "papers-c": lambda: tables.papers_c(found),
        "summary": lambda: tables.summary(found),
        "wins": lambda: meetings.wins(found),
        "losses": lambda: meetings.losses(found),
        "wins-plain": lambda: meetings.wins(found, study.PLAIN),
        "losses-plain": lambda: meetings.losses(found, study.PLAIN),
        "cells": lambda: tables.all_cells(found),
        "documents": lambda: f"Each cell: {found.documents} documents.",
    }


def written(text: str, known: dict[str, Callable[[], str]]) -> str:
    """Return a page with all its blocks as the records say."""

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}\n{known[match[2]]()}\n\n{match[3]}"

    return BLOCK.sub(fill, text)


def main() -> None:
    """Write all pages."""
    known = blocks()
    for page in PAGES:
        file = ROOT / page
        file.write_text(written(file.read_text(encoding="utf-8"), known), encoding="utf-8")


if __name__ == "__main__":
    main()
