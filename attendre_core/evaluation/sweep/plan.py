"""Which systems are measured at which sizes, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.grid import SIZELESS

__all__ = ["Cell", "cells_of"]


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
        """The cell for people."""
        if not self.kv:
            return self.policy
        return f"{self.policy}, M = {self.kv}" + (f", N = {self.q}" if self.q else "")


def cells_of(
    policies: Sequence[str],
    controls: Sequence[str],
    kv: Sequence[int],
    q: Sequence[int | Literal["half"]],
) -> list[Cell]:
    """List the cells, each once: controls without a size first, then size by size.

    Parameters
    ----------
    policies, controls
        In the order in which they are measured and shown.
    kv, q
        M and N; ``"half"`` is half of each M. Pairs with N >= M are left out, because a query
        would find its own keys gone.

    Examples
    --------
    >>> [cell.words for cell in cells_of(["MT"], ["full", "random"], [64, 128], [0, 64])]
    ... # doctest: +NORMALIZE_WHITESPACE
    ['full', 'MT, M = 64', 'random, M = 64', 'MT, M = 128', 'random, M = 128',
     'MT, M = 128, N = 64', 'random, M = 128, N = 64']
    """
    every = list(dict.fromkeys([*policies, *controls]))
    sizeless = [name for name in SIZELESS if name in every]
    found = dict.fromkeys(Cell(name, 0, 0) for name in sizeless)
    sized = [name for name in every if name not in SIZELESS]
    sizes = dict.fromkeys((m, m // 2 if n == "half" else n) for m in kv for n in q)
    for m, n in sizes:
        if n < m:
            found |= dict.fromkeys(Cell(name, m, n) for name in sized)
    if sized and not any(cell.kv for cell in found):
        raise ConfigError(
            f"eval: every N of {list(q)} is as large as every M of {list(kv)}, expected N < M. "
            "Give --q 0 or --q half."
        )
    return list(found)
