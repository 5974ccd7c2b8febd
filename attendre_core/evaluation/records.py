"""Measured cells as lines of JSON, and back: one line a cell, complete in itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.accuracy import Outcome
from attendre_core.evaluation.grid import Cell, Measured

__all__ = ["from_record", "read_records", "to_record", "write_records"]


def to_record(measured: Measured) -> dict[str, Any]:
    """Return plain values: the cell, the share with its interval, and every single result.

    Examples
    --------
    >>> cell = Cell("prefix-lm", "look-ahead", "repeat", "MT", 32, 0, None)
    >>> outcome = Outcome(np.asarray([True, False]), np.ones(2), np.ones(2))
    >>> to_record(Measured(cell, outcome))["right"]
    '10'
    """
    accuracy, outcome = measured.accuracy, measured.outcome
    return {
        **measured.cell._asdict(),
        "documents": outcome.right.size,
        "accuracy": round(accuracy.value, 6),
        "low": round(accuracy.low, 6),
        "high": round(accuracy.high, 6),
        "admitted": round(float(outcome.admitted.mean()), 4),
        "present": round(float(outcome.present.mean()), 4),
        "right": "".join("01"[int(flag)] for flag in outcome.right),
    }


def from_record(record: dict[str, Any]) -> Measured:
    """Return a measured cell; both shares are the same mean for every document."""
    try:
        cell = Cell(**{name: record[name] for name in Cell._fields})
        right = np.asarray([flag == "1" for flag in record["right"]], dtype=bool)
        full = np.ones(right.size)
        outcome = Outcome(right, full * record["admitted"], full * record["present"])
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"from_record: {str(record)[:80]} is no measured cell ({error}). Expected a line that "
            "write_records wrote."
        ) from error
    return Measured(cell, outcome)


def write_records(path: Path, measured: Iterable[Measured]) -> None:
    """Append cells to a file, each as soon as it is there."""
    with path.open("a", encoding="utf-8") as file:
        for one in measured:
            file.write(json.dumps(to_record(one)) + "\n")
            file.flush()


def read_records(path: Path) -> list[Measured]:
    """Read all cells of a file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [from_record(json.loads(line)) for line in lines if line.strip()]
