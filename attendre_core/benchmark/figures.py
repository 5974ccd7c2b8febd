"""One line of the table: what was measured, against what, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from attendre_core.benchmark.timing import Ratio

__all__ = ["Figure", "Target", "markdown"]


@dataclass(frozen=True)
class Target:
    """A bound for a ratio: at most, or at least."""

    sense: Literal["at most", "at least"]
    bound: float

    def is_met(self, value: float) -> bool:
        """Whether a value is good enough."""
        return value <= self.bound if self.sense == "at most" else value >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.sense == 'at most' else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes
    ----------
    row
        Number of the row in the table of targets.
    ratio
        None when it was skipped.
    note
        Why it was skipped, or what else was seen.
    """

    row: int
    name: str
    target: Target
    ratio: Ratio | None
    note: str = ""

    @property
    def verdict(self) -> str:
        """``pass``, ``short`` or ``skipped``."""
        if self.ratio is None:
            return "skipped"
        return "pass" if self.target.is_met(self.ratio.median) else "short"


def markdown(figures: Iterable[Figure]) -> str:
    """Return a table.

    Examples
    --------
    >>> figure = Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5))
    >>> print(markdown([figure]).splitlines()[2])
    | 1 | a step | ≤ 1.2 | 1.10 (1.00 to 1.20) | pass |  |
    """
    lines = ["| # | measure | target | measured | verdict | note |", "|---|---|---|---|---|---|"]
    for f in figures:
        shown = (
            ""
            if f.ratio is None
            else (f"{f.ratio.median:.2f} ({f.ratio.low:.2f} to {f.ratio.high:.2f})")
        )
        lines.append(f"| {f.row} | {f.name} | {f.target} | {shown} | {f.verdict} | {f.note} |")
    return "\n".join(lines) + "\n"
