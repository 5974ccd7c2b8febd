"""No positions: attention by content alone."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.positions.base import Encoding

__all__ = ["NoPosition"]


@dataclass(frozen=True)
class NoPosition(Encoding):
    """Attend by content alone, e.g. if positions were already added to the input (BERT).

    Examples
    --------
    >>> NoPosition()
    NoPosition()
    """
