"""Measured cells as one line each: the form in which the study and the demo are kept here.

``python docs/results/compact.py results.jsonl ... > demo.jsonl`` turns results files of
``attendre demo --out`` into such lines.

Files that were written before names said everything have policies under older spellings, and c
beside them: ``softmax-hold-LFA-0`` with sigmas 0 is ``LFA-0+softmax+hold+c=0``. They are read as
the names of today; the files stay as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import label_of
from attendre_core.evaluation.intervals import share
from attendre_core.evaluation.sweep import Cell, Measured, read_results

#: The c with which the paper measured its prefix-LM, PaLM 2; 1 where it says nothing else.
PAPER_SIGMAS = {"LRA-last": 2.0, "LRA-max": 1.5, "LRA-sum": 1.5}
#: Words that used to come before a name.
_PREFIXES = {
    "visible-": "visible",
    "per-head-": "per-head",
    "softmax-": "softmax",
    "hold-": "hold",
}


class Place(NamedTuple):
    """Which model reads what."""

    model: str
    task: str
    answers: str


#: Cells by where they were measured.
Cells = dict[tuple[Place, Cell], Measured]


@cache
def with_c(name: str, c: float) -> str:
    """Return the name of a policy at a c; plain names have c = 1.

    Examples
    --------
    >>> with_c("LFA-0", -1.0), with_c("LFA-0", 1.0)
    ('LFA-0+c=-1', 'LFA-0')
    """
    return label_of(f"{name}+c={c:g}")


def papers_name(model: str, name: str) -> str:
    """Return the name of a policy at the c that the paper used for such a model."""
    return with_c(name, PAPER_SIGMAS.get(name, 1.0) if model == "prefix-lm" else 1.0)


def name_of(line: dict[str, Any]) -> str:
    """Return the canonical name of the system of a line, whatever its spelling.

    Examples
    --------
    >>> name_of({"model": "prefix-lm", "system": "softmax-hold-LFA-0", "sigmas": 0.0})
    'LFA-0+softmax+hold+c=0'
    >>> name_of({"model": "prefix-lm", "system": "LRA-last", "sigmas": "paper"})
    'LRA-last+c=2'
    """
    name, options = str(line["system"]), ""
    for prefix, option in _PREFIXES.items():
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            options += f"+{option}"
    c = line["sigmas"]
    if c == "paper":
        return papers_name(line["model"], name)
    return _label(name + options) if c is None else with_c(name + options, float(c))


_label = cache(label_of)


def read_cells(path: Path, seed: int | None = None) -> Cells:
    """Read the cells of a file: all of them, or those with the documents of one seed.

    Every document has the same ``admitted`` and ``present``, the mean of the cell.
    """
    found: Cells = {}
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            if seed is not None and line["seed"] != seed:
                continue
            place = Place(line["model"], line["task"], line["answers"])
            cell = Cell(name_of(line), line["kv_size"], line["q_size"])
            shares = {"admitted": line["admitted"], "present": line["present"]}
            scores = {
                f"{line['seed']}:{i}": {"right": float(flag), **shares}
                for i, flag in enumerate(line["right"])
            }
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{path}, line {number}: no measured cell ({error!r}).") from error
        found[place, cell] = Measured(cell, scores)
    return found


def line_of(place: Place, seed: int, measured: Measured) -> str:
    """Write a cell as a line that `read_cells` reads."""
    right = list(measured.column("right").values())
    interval = share(right)
    return json.dumps(
        {
            **place._asdict(),
            "system": measured.cell.policy,
            "kv_size": measured.cell.kv,
            "q_size": measured.cell.q,
            "sigmas": None,
            "seed": seed,
            "documents": len(right),
            **{name: round(x, 6) for name, x in zip(
                ("accuracy", "low", "high"), interval, strict=True
            )},
            "admitted": round(measured.mean("admitted"), 4),
            "present": round(measured.mean("present"), 4),
            "right": "".join("01"[int(flag)] for flag in right),
        }
    )  # fmt: skip


def lines_of(files: Iterable[Path]) -> list[str]:
    """Return the lines of some results files of synthetic tasks."""
    lines = []
    for file in files:
        identity, measured = read_results(file)
        place = Place(identity["model"], identity["task"], identity["answers"])
        lines += [line_of(place, identity["seed"], found) for found in measured]
    return lines


if __name__ == "__main__":
    print("\n".join(lines_of(Path(name) for name in sys.argv[1:])))
