"""Reset and reorder the rows of a batch."""

from __future__ import annotations

from typing import Any, TypeVar

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.tree import tree_leaves, tree_map

__all__ = ["reorder_rows", "reset_rows"]

State = TypeVar("State", bound=tuple[Any, ...])


def reset_rows(where: str, state: State, empty: State, rows: Array) -> State:
    """Replace the rows where ``rows`` is True by those of ``empty``."""
    xp = checks.same_library(where, tuple(state), rows)
    checks.boolean(where, "rows", rows)
    batch = tree_leaves(state)[0].shape[0]
    checks.shape(where, "rows", rows, "batch", (batch,), "Give one flag to each row.")

    def chosen(old: Array, new: Array) -> Array:
        return xp.where(xp.reshape(rows, (batch,) + (1,) * (old.ndim - 1)), new, old)

    result: State = tree_map(chosen, state, empty)
    return result


def reorder_rows(where: str, state: State, index: Array) -> State:
    """Return row ``index[i]`` as row i."""
    xp = checks.same_library(where, tuple(state), index)
    checks.row_index(where, index, tree_leaves(state)[0].shape[0])
    result: State = tree_map(lambda leaf: xp.take(leaf, index, axis=0), state)
    return result
