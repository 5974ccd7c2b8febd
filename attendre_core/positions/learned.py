"""Learned absolute positions (BERT): added to the input; attention itself has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.lookup import take_rows
from attendre_core.positions.base import Encoding

__all__ = ["LearnedPositions"]


@dataclass(frozen=True)
class LearnedPositions(Encoding):
    """A table of vectors, one per position, that the model adds to its input.

    Attention itself applies no positions. The table has an end; ``beyond`` says which row longer
    inputs get.

    Parameters
    ----------
    length
        Rows of the table.
    beyond
        ``"last"``: repeat the last row; ``"wrap"``: start again from the first.

    Examples
    --------
    >>> import numpy as np
    >>> table = np.asarray([[0.0], [1.0], [2.0]])
    >>> LearnedPositions(3).embed(table, np.asarray([1, 7])).tolist()
    [[1.0], [2.0]]
    """

    length: int
    beyond: Literal["last", "wrap"] = "last"

    def __post_init__(self) -> None:
        if self.length < 1 or self.beyond not in ("last", "wrap"):
            raise ConfigError(
                f"LearnedPositions: length is {self.length} and beyond {self.beyond!r}, expected "
                "at least one row, and 'last' or 'wrap'."
            )

    def embed(self, table: Array, position: Array) -> Array:
        """Look up positions: a table (length, dim) and positions (...) give (..., dim)."""
        xp = backend_of(table).xp
        if tuple(table.shape[:1]) != (self.length,):
            raise ConfigError(
                f"LearnedPositions: the table has shape {tuple(table.shape)}, expected "
                f"({self.length}, dim)."
            )
        if self.beyond == "wrap":
            row = position % self.length
        else:
            row = xp.where(position < self.length, position, self.length - 1)
            row = xp.where(row < 0, xp.zeros_like(row), row)
        return take_rows(table, xp.astype(row, xp.int32))
