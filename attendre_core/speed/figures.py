"""One line of the table: what was measured, its target, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from attendre_core.errors import ConfigError
from attendre_core.speed.timing import Ratio

__all__ = ["Figure", "Target", "figure_of", "markdown", "skipped"]


@dataclass(frozen=True)
class Target:
    """An upper or a lower bound for a ratio."""

    sense: Literal["at most", "at least"]
    bound: float

    def is_met(self, value: float) -> bool:
        """Whether a value is within the bound."""
        return value <= self.bound if self.sense == "at most" else value >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.sense == 'at most' else '≥'} {self.bound:g}"


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes
    ----------
    row
        Number of the row, as in ``attendre bench --help``; several figures may share it.
    name
        What was measured, and against which reference.
    target
        The bound for the median.
    ratio
        The measurement; None if it was skipped.
    note
        Why it was skipped, or a remark.
    """

    row: int
    name: str
    target: Target
    ratio: Ratio | None
    note: str = ""

    @property
    def library(self) -> str:
        """The array library, with which the name begins."""
        return self.name.partition(":")[0]

    @property
    def verdict(self) -> str:
        """``"pass"``, ``"short"`` (the target is missed) or ``"skipped"``."""
        if self.ratio is None:
            return "skipped"
        return "pass" if self.target.is_met(self.ratio.median) else "short"

    @property
    def measured(self) -> str:
        """The median with its quartiles; empty if it was skipped.

        Examples
        --------
        >>> Figure(1, "a step", Target("at most", 1.2), Ratio(1.1, 1.0, 1.2, 5)).measured
        '1.10 (1.00 to 1.20)'
        """
        ratio = self.ratio
        if ratio is None:
            return ""
        # A ratio of 1.004 against a bound of 1.01 needs a third decimal.
        digits = 3 if abs(self.target.bound - 1) < 0.05 else 2
        low, middle, high = (f"{x:.{digits}f}" for x in (ratio.low, ratio.median, ratio.high))
        return f"{middle} ({low} to {high})"

    def as_dict(self) -> dict[str, Any]:
        """Return the figure as values for JSON."""
        return {**asdict(self), "verdict": self.verdict}


def figure_of(record: dict[str, Any]) -> Figure:
    """Make a figure from the values of `Figure.as_dict`.

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
            f"bench: a figure of the results does not have the format of attendre bench "
            f"({error!r}). Measure again with attendre bench --save."
        ) from error


def skipped(row: int, name: str, target: Target, why: str) -> Figure:
    """Return a figure that could not be measured."""
    return Figure(row, name, target, None, f"skipped: {why}")


def markdown(figures: Iterable[Figure]) -> str:
    """Return the figures as a Markdown table.

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
