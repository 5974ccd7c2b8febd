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


def to_record(measured: Measured, seed: int | None = None) -> dict[str, Any]:
    """Return plain values: the cell, the share with its interval, and every single result.

    Parameters
    ----------
    seed
        Of the documents, if the file shall say it.

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
        **({} if seed is None else {"seed": seed}),
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


def write_records(path: Path, measured: Iterable[Measured], seed: int | None = None) -> None:
    """Append cells to a file, each as soon as it is there; ``seed`` as in `to_record`."""
    try:
        with path.open("a+b") as old:
            # A line that was cut off would spoil the one that comes after it.
            old.seek(0)
            whole = old.read().rfind(b"\n") + 1
            old.truncate(whole)
        with path.open("a", encoding="utf-8") as file:
            for one in measured:
                file.write(json.dumps(to_record(one, seed)) + "\n")
                file.flush()
    except OSError as error:
        raise ConfigError(
            f"write_records: {path} cannot be written ({error.strerror}). The cells that it holds "
            "already are kept; make room, or give another file."
        ) from error


def read_records(path: Path, seed: int | None = None) -> list[Measured]:
    """Read the cells of a file: all of them, or those with the documents of one seed.

    A last line that was cut off, because writing was interrupted, is left out.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"read_records: {path} cannot be read ({error}). Give another file."
        ) from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or not line.endswith("\n"):
            continue
        try:
            record = json.loads(line)
            own = seed is None or record.get("seed") == seed
        except (AttributeError, ValueError) as error:
            raise ConfigError(
                f"read_records: line {number} of {path} is no measured cell ({error}). Expected a "
                "line of JSON that write_records wrote; move the file away, or give another one."
            ) from error
        if own:
            found.append(from_record(record))
    return found
