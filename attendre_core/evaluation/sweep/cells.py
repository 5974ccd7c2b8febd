"""Which systems are measured at which sizes, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import SIZELESS, label_of

__all__ = ["Cell", "cells_of", "sizes_of"]


class Cell(NamedTuple):
    """A system at a size; M and N are 0 for a control that has none.

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
        """The cell in words."""
        if not self.kv:
            return self.policy
        return f"{self.policy}, M = {self.kv}" + (f", N = {self.q}" if self.q else "")


def sizes_of(kv: Sequence[int], q: Sequence[int | Literal["half"]]) -> list[tuple[int, int]]:
    """Return all pairs of M and N, each once, without those where N >= M.

    Parameters
    ----------
    kv, q
        M and N; ``"half"`` is half of each M. A query that waits for N >= M positions would find
        its own keys evicted.

    Examples
    --------
    >>> sizes_of([64, 128], [0, 64])
    [(64, 0), (128, 0), (128, 64)]
    """
    pairs = dict.fromkeys((m, m // 2 if n == "half" else n) for m in kv for n in q)
    found = [(m, n) for m, n in pairs if n < m]
    if not found:
        raise ConfigError(
            f"eval: every N of {list(q)} is as large as every M of {list(kv)}, expected N < M. "
            "Use --q 0 or --q half."
        )
    return found


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
        Pairs of M and N, such as `sizes_of` returns.

    Examples
    --------
    >>> [cell.words for cell in cells_of(["mt"], ["full", "random"], [(64, 0), (128, 64)])]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['full', 'MT, M = 64', 'random, M = 64', 'MT, M = 128, N = 64', 'random, M = 128, N = 64']
    """
    every = list(dict.fromkeys(label_of(name) for name in (*policies, *controls)))
    sized = [name for name in every if name not in SIZELESS]
    found = dict.fromkeys(Cell(name, 0, 0) for name in SIZELESS if name in every)
    found |= dict.fromkeys(Cell(name, m, n) for m, n in sizes for name in sized)
    return list(found)
