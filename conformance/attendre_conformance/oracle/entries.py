"""One stored entry, where its score comes from, and what queries get."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

Vector = list[float]
Heads = list[Vector]


@dataclass(eq=False)
class Entry:
    """One stored entry. ``key`` and ``value`` are lists of heads."""

    arrival: int
    position: int
    key: Any
    value: Any
    score: float
    origin: Hashable
    pinned: bool = False
    observed: bool = False


@dataclass
class Attended:
    """What the queries of one row got: ``[query][head]`` of each."""

    output: list[list[Vector]]
    selected: list[list[list[Entry]]]
    similarity: list[list[list[float]]]


def exact(value: float) -> Hashable:
    """Origin of a score that is computed without any rounding."""
    return ("exact", value + 0.0)


def added(origin: Any, amount: float) -> Hashable:
    """Origin of the sum of a score and an exactly known amount."""
    if amount == 0.0:
        return origin  # type: ignore[no-any-return]
    if origin[0] == "exact":
        return exact(origin[1] + amount)
    return ("plus", origin, amount)
