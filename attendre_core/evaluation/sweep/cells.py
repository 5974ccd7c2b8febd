"""The cells of a sweep: systems at sizes, in the order in which they are measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from attendre_core.evaluation.controls import SIZELESS, system

__all__ = ["Cell", "cells_of"]


class Cell(NamedTuple):
    """A system at a size: its name, M and N, which are 0 for a control without a size.

    Examples
    --------
    >>> Cell("MT", 256, 0).words
    'MT, M = 256'
    """

    policy: str
    kv: int
    q: int

    @property
    def words(self) -> str:
        """The cell as text."""
        if not self.kv:
            return self.policy
        return f"{self.policy}, M = {self.kv}" + (f", N = {self.q}" if self.q else "")


def cells_of(
    policies: Sequence[str], controls: Sequence[str], sizes: Sequence[tuple[int, int]]
) -> list[Cell]:
    """List the cells, each once: controls without a size first, then size by size.

    Parameters
    ----------
    policies, controls
        Names as in `attendre_core.evaluation.system`, in the order in which they are measured and
        shown; cells hold their canonical names.
    sizes
        Pairs of M and N.

    Examples
    --------
    >>> [cell.words for cell in cells_of(["mt"], ["full", "random"], [(64, 0), (128, 64)])]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['full', 'MT, M = 64', 'random, M = 64', 'MT, M = 128, N = 64', 'random, M = 128, N = 64']
    """
    largest = max((m for m, _ in sizes), default=1)
    names = list(dict.fromkeys(system(name, largest).name for name in (*policies, *controls)))
    sized = [name for name in names if name not in SIZELESS]
    cells = dict.fromkeys(Cell(name, 0, 0) for name in SIZELESS if name in names)
    cells |= dict.fromkeys(Cell(name, m, n) for m, n in sizes for name in sized)
    return list(cells)
