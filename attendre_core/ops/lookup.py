"""Look up rows of a table by an index of any shape; the standard allows only one axis."""

from __future__ import annotations

from attendre_core.backend import Array, namespace_of, op

__all__ = ["take_rows"]


@op
def take_rows(table: Array, index: Array) -> Array:
    """Take the rows given by ``index``.

    Parameters
    ----------
    table
        (n, ...).
    index
        Integer, any shape; 0 to n - 1.

    Returns
    -------
    array
        The shape of ``index``, then that of a row. A kernel need not flatten the index, whose
        axes may be sharded over devices.

    Examples
    --------
    >>> import numpy as np
    >>> take_rows(np.asarray([10, 20, 30]), np.asarray([[2, 0], [1, 1]])).tolist()
    [[30, 10], [20, 20]]
    """
    xp = namespace_of(table, index)
    line = xp.reshape(index, (-1,))
    return xp.reshape(xp.take(table, line, axis=0), (*index.shape, *table.shape[1:]))
