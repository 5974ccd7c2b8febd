"""Cut a whole input into chunks, and put what comes out back into input order.

::

    (batch, time, ...)  ── chunks_of ──►  (batch, S, ...)  ── step ──►  outputs, maybe late
                                                                             │
    (batch, time, C)  ◄──────────────────── in_order ◄───────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attendre_core.backend import Array, backend_of, numbers
from attendre_core.ops.slots import write_slots
from attendre_core.tree import tree_leaves, tree_map

__all__ = ["chunks_of", "fill_up", "in_order", "join"]


def chunks_of(tree: Any, length: int, *, fill: bool = True) -> Iterator[Any]:
    """Cut nested arrays (batch, time, ...) into chunks (batch, length, ...).

    Parameters
    ----------
    tree
        Nested arrays with the same number of positions; None stays None.
    length
        S: positions per chunk.
    fill
        Pad the last chunk with zeros (False for flags), so that all chunks have the same shape.
        Otherwise it may be shorter.

    Examples
    --------
    >>> import numpy as np
    >>> [part.tolist() for part in chunks_of(np.asarray([[1, 2, 3]]), 2)]
    [[[1, 2]], [[3, 0]]]
    """
    time = tree_leaves(tree)[0].shape[1]
    for start in range(0, time, length):
        part = slice(start, min(start + length, time))

        def cut(array: Array, part: slice = part) -> Array:
            here = array[:, part, ...]
            return fill_up(here, length) if fill else here

        yield tree_map(cut, tree)


def fill_up(array: Array, length: int) -> Array:
    """Append zeros to (batch, time, ...) up to ``length`` positions."""
    missing = length - array.shape[1]
    if missing <= 0:
        return array
    backend = backend_of(array)
    shape = (array.shape[0], missing, *array.shape[2:])
    zeros = backend.xp.zeros(shape, dtype=array.dtype, device=backend.device_of(array))
    return backend.xp.concat([array, zeros], axis=1)


def join(trees: Sequence[Any]) -> Any:
    """Concatenate equally nested arrays (batch, n, ...) along the second axis.

    Examples
    --------
    >>> import numpy as np
    >>> join([(np.asarray([[1]]), None), (np.asarray([[2, 3]]), None)])[0].tolist()
    [[1, 2, 3]]
    """

    def concat(*arrays: Array) -> Array:
        return backend_of(arrays[0]).xp.concat(list(arrays), axis=1)

    return trees[0] if len(trees) == 1 else tree_map(concat, *trees)


def in_order(pieces: Sequence[tuple[Array, Array, Array]], length: int) -> Array:
    """Put outputs into input order.

    Pieces are written one after another. To differentiate through this, `join` them first:
    otherwise every write keeps a copy of the whole result for the backward pass.

    Parameters
    ----------
    pieces
        Outputs (batch, n, ...), their places in the input, integer (batch, n), and which of them
        are valid, boolean (batch, n).
    length
        Length of the input.

    Returns
    -------
    array
        (batch, length, ...): zeros where nothing came out.

    Examples
    --------
    >>> import numpy as np
    >>> late = (np.asarray([[7.0, 8.0]]), np.asarray([[1, 0]]), np.asarray([[True, False]]))
    >>> in_order([late], 3).tolist()
    [[0.0, 7.0, 0.0]]
    """
    first = pieces[0][0]
    backend = backend_of(first)
    xp = backend.xp
    most = max(x.shape[1] for x, _, _ in pieces)
    shape = (first.shape[0], length + most, *first.shape[2:])
    result = xp.zeros(shape, dtype=first.dtype, device=backend.device_of(first))
    index_dtype = xp.argsort(numbers(1, first)).dtype
    for x, place, valid in pieces:
        # Invalid outputs go past the end, each to a place of its own.
        aside = xp.zeros_like(place) + (length + numbers(x.shape[1], first))
        index = xp.astype(xp.where(valid, place, aside), index_dtype)
        (result,) = write_slots([result], index, [x], valid, axis=1, donate=True)
    return result[:, :length, ...]
