"""One line of the table: what was measured, against what, and whether that is good enough."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attendre_core.errors import ConfigError
from attendre_core.speed.timing import Ratio

__all__ = ["Figure", "Target", "figure_of", "markdown", "skipped"]


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

    @property
    def measured(self) -> str:
        """The median with its quartiles; nothing when it was skipped.

        Examples
        --------
        >>> Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5)).measured
        '1.10 (1.00 to 1.20)'
        """
        found = self.ratio
        if found is None:
            return ""
        # A ratio of 1.004 against a bound of 1.01 needs its third digit.
        digits = 3 if abs(self.target.bound - 1) < 0.05 else 2
        low, middle, high = (f"{x:.{digits}f}" for x in (found.low, found.median, found.high))
        return f"{middle} ({low} to {high})"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def figure_of(record: dict[str, Any]) -> Figure:
    """Read back what `Figure.as_dict` gave.

    Examples
    --------
    >>> one = Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5))
    >>> figure_of(one.as_dict()) == one
    True
    """
    try:
        ratio = record["ratio"]
        return Figure(
            int(record["row"]), record["name"], Target(**record["target"]),
            None if ratio is None else Ratio(**ratio), record["note"],
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            f"bench: a figure of the results is not as attendre bench writes it ({error!r}). "
            "Measure again with attendre bench --save."
        ) from error


def skipped(row: int, name: str, target: Target, why: str) -> Figure:
    """Return a line for what could not be measured here."""
    return Figure(row, name, target, None, f"skipped: {why}")


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
        cells = (f.row, f.name, f.target, f.measured, f.verdict, f.note)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"
