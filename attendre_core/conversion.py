"""Convert states from one array library to another."""

from __future__ import annotations

from typing import Any

from attendre_core.backend import Array, Backend, backend, backend_of
from attendre_core.tree import tree_map

__all__ = ["convert"]


def convert(tree: Any, to: str | Backend, device: Any = None) -> Any:
    """Copy nested arrays, e.g. the state of a memory, into another library.

    Parameters
    ----------
    tree
        A state, or any nested tuples, lists and dicts of arrays.
    to
        A backend or its name.
    device
        Passed to the target library.

    Returns
    -------
    Any
        The same structure and values; a memory continues from it as if never interrupted.

    Examples
    --------
    >>> import numpy as np
    >>> convert((np.zeros(2), None), "numpy")
    (array([0., 0.]), None)
    """
    target = backend(to)

    def moved(array: Array) -> Array:
        return target.from_numpy(backend_of(array).to_numpy(array), device=device)

    return tree_map(moved, tree)
