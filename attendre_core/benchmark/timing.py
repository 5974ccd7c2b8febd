"""Time two things in turns, so that a busy machine slows both."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Ratio", "ratio", "ready"]


@dataclass(frozen=True)
class Ratio:
    """One thing over another: the median of neighbouring runs, and the quartiles."""

    median: float
    low: float
    high: float
    repeats: int


def ready(result: Any) -> Any:
    """Wait until a result is computed, where a library computes later."""
    for leaf in _leaves(result):
        wait = getattr(leaf, "block_until_ready", None)
        if wait is not None:
            wait()
    return result


def _leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in _leaves(part)]
    if isinstance(tree, (tuple, list)):
        return [leaf for part in tree for leaf in _leaves(part)]
    return [tree]


def ratio(
    one: Callable[[], Any], other: Callable[[], Any], *, repeats: int = 15, warm: int = 3
) -> Ratio:
    """Return the time of ``one`` over that of ``other``.

    Each turn runs both, the order changing from turn to turn; the first ``warm`` turns do not
    count.

    Examples
    --------
    >>> ratio(lambda: sum(range(2000)), lambda: sum(range(2000)), repeats=5).repeats
    5
    """
    found = []
    for turn in range(repeats + warm):
        seconds = {}
        for function in (one, other) if turn % 2 else (other, one):
            start = time.perf_counter()
            ready(function())
            seconds[function] = time.perf_counter() - start
        if turn >= warm:
            found.append(seconds[one] / seconds[other])
    low, middle, high = statistics.quantiles(found, n=4)
    return Ratio(middle, low, high, repeats)
