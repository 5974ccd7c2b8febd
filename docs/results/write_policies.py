"""Writes docs/policies.md from records: ``python docs/results/write_policies.py``.

Each block is between two comments, ``<!-- begin NAME -->`` and ``<!-- end NAME -->``: ``which``,
``ranks``,
``standings``, ``commands``, or the name of a record, whose table it holds. A test compares both.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import generated
import policies

PAGE = Path(__file__).parents[1] / "policies.md"
BLOCK = re.compile(r"(<!-- begin ([\w.-]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def block(name: str, folder: Path = policies.HERE) -> str:
    """Return what belongs between two comments."""
    known = {
        "which": policies.which, "ranks": policies.ranks, "standings": policies.standings,
        "commands": policies.commands,
    }  # fmt: skip
    if name in known:
        return known[name](folder)
    writes = policies.read_record(name, folder).identity["task"] in generated.METRICS
    return (generated.written_table if writes else policies.oracle_table)(name, folder)


def written(text: str, folder: Path = policies.HERE) -> str:
    """Return the page with all its blocks as the records say."""
    return BLOCK.sub(lambda match: f"{match[1]}\n{block(match[2], folder)}\n\n{match[3]}", text)


def main() -> None:
    """Write the page."""
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
