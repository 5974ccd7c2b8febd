"""A survival map reduced to a given number of rows and columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.tracing.record import (
    AHEAD,
    EVICTED,
    HELD,
    REFUSED,
    STATES,
    LayerTrace,
)
from attendre_core.layer.trace import REASONS

__all__ = ["coarse_map", "steps_of_rows"]


def steps_of_rows(steps: int, rows: int) -> NDArray[np.int64]:
    """Return the step that each row of a map shows: the last one of the steps it stands for.

    Examples
    --------
    >>> steps_of_rows(10, 4).tolist()
    [1, 4, 6, 9]
    """
    return (np.arange(rows) + 1) * steps // rows - 1


def coarse_map(layer: LayerTrace, rows: int, columns: int) -> NDArray[np.float32]:
    """Return the share of each state among the tokens of a column, (states, rows, columns).

    It is computed from changes between steps, so the full map of steps and tokens is never made.

    Parameters
    ----------
    rows, columns
        Size of the map, reduced to the number of steps and tokens if there are fewer.

    Examples
    --------
    >>> lives = [np.asarray(a, np.int32) for a in ([0, 0, 1, 1], [1, -1, 1, -1], [4, 0, 1, 0])]
    >>> layer = LayerTrace(0, 2, *lives, steps=2, attended=None)
    >>> coarse_map(layer, 2, 2)[HELD].tolist()
    [[1.0, 0.0], [0.5, 0.5]]
    """
    count = len(layer.born)
    rows, columns = min(rows, layer.steps), min(columns, count)
    shown = steps_of_rows(layer.steps, rows)
    column = np.arange(count) * columns // count
    left = layer.gone >= 0
    came = np.searchsorted(shown, layer.born)
    went = np.where(left, np.searchsorted(shown, np.where(left, layer.gone, 0)), rows)
    refused = layer.reason == REASONS.index("refused")
    change = np.zeros((len(STATES), rows + 1, columns), dtype=np.int32)
    np.add.at(change[AHEAD, 0], column, 1)
    for state, row, which, sign in (
        (AHEAD, came, slice(None), -1),
        (HELD, came, slice(None), 1),
        (HELD, went, slice(None), -1),
        (REFUSED, went, left & refused, 1),
        (EVICTED, went, left & ~refused, 1),
    ):
        np.add.at(change[state], (row[which], column[which]), sign)
    share: NDArray[np.float32] = np.cumsum(change[:, :rows], axis=1).astype(np.float32)
    share /= np.bincount(column, minlength=columns).astype(np.float32)
    return share
