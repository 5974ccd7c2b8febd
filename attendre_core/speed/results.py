"""Results and their file format: the figures, and the machine and versions behind them."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from attendre_core.errors import ConfigError
from attendre_core.files import write_text
from attendre_core.speed.figures import Figure, figure_of

__all__ = ["Results", "environment"]

_PACKAGES = (
    "attendre-core", "numpy", "torch", "jax", "transformers", "kvpress",
    "memorizing-transformers-pytorch", "faiss-cpu", "numba", "xllamacpp",
)  # fmt: skip


def environment(threads: int, quick: bool) -> dict[str, Any]:
    """Describe the machine and the versions, so that results can be compared."""
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "threads": threads,
        "quick": quick,
        "versions": versions,
    }


@dataclass(frozen=True)
class Results:
    """The results of a benchmark run.

    Attributes
    ----------
    figures
        In the order of the table.
    environment
        From `environment`. Where rows were measured later elsewhere, ``"later"`` has what is
        different for them, by row number.
    remarks
        Remarks on rows that fall short, by row number: the profile, the limit, what was tried.
    counts
        Calls and instructions of a small eager step (`attendre_core.speed.counts`), by name.
    """

    figures: Sequence[Figure]
    environment: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the results as values for JSON."""
        return {
            "environment": dict(self.environment),
            "figures": [figure.as_dict() for figure in self.figures],
            "remarks": dict(self.remarks),
            "counts": dict(self.counts),
        }

    def updated(self, new: Results) -> Results:
        """Return these results with the rows of new ones in place of their own."""
        measured = {(figure.row, figure.library) for figure in new.figures}
        figures = [f for f in self.figures if (f.row, f.library) not in measured]
        for figure in new.figures:
            same = [i for i, f in enumerate(figures) if f.library == figure.library]
            before = [i for i in same if figures[i].row <= figure.row]
            figures.insert((before or same or [len(figures) - 1])[-1] + 1, figure)
        facts = {name: x for name, x in self.environment.items() if name != "later"}
        later = dict(self.environment.get("later", {}))
        for row in sorted({row for row, _ in measured}):
            later.pop(str(row), None)
            if new.environment != facts:
                later[str(row)] = dict(new.environment)
        facts |= {"later": later} if later else {}
        return Results(tuple(figures), facts, self.remarks, {**self.counts, **new.counts})

    def save(self, path: str | Path) -> None:
        """Write a JSON file."""
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False) + "\n"
        write_text(path, text)

    @classmethod
    def load(cls, path: str | Path) -> Results:
        """Read a file written by `save`."""
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls(
                tuple(figure_of(record) for record in content["figures"]),
                content.get("environment", {}), content.get("remarks", {}),
                content.get("counts", {}),
            )  # fmt: skip
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"bench: {path} holds no results ({error}). Create it with attendre bench --save."
            ) from error


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
