"""From the order in which GGUF and llama2.c store the rows of a matrix to that of everybody else.

Applied to ``numpy.arange`` they say which row of the file is row 0, 1, ... of the matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["in_groups", "in_halves"]


def in_halves(rows: Any, heads: int) -> Any:
    """Reorder the rows of a query or key matrix, or of its bias.

    llama.cpp and llama2.c rotate features 2i and 2i + 1 of a head together; the models here
    rotate i and i + dim/2, as most public checkpoints do. Queries and keys are reordered alike,
    so their products do not change.

    Parameters
    ----------
    rows
        (heads * head_dim, ...).
    heads
        Query heads, or K/V heads.

    Examples
    --------
    >>> import numpy as np
    >>> in_halves(np.asarray([0, 1, 2, 3]), heads=1).tolist()
    [0, 2, 1, 3]
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def in_groups(rows: Any, heads: int, kv_heads: int) -> Any:
    """Reorder the rows of Falcon's matrix of queries, keys and values, or of its bias.

    llama.cpp keeps all queries, then all keys, then all values; Falcon keeps each K/V head with
    its group: the query heads, the key, the value.

    Parameters
    ----------
    rows
        ((heads + 2 * kv_heads) * head_dim, ...).
    heads, kv_heads
        Query heads and K/V heads.

    Examples
    --------
    >>> import numpy as np
    >>> in_groups(np.asarray(["q0", "q1", "k0", "k1", "v0", "v1"]), heads=2, kv_heads=2).tolist()
    ['q0', 'k0', 'v0', 'q1', 'k1', 'v1']
    """
    width = rows.shape[0] // (heads + 2 * kv_heads)
    parts = np.split(rows, [heads * width, (heads + kv_heads) * width])
    groups = [part.reshape(kv_heads, -1, *rows.shape[1:]) for part in parts]
    return np.concatenate(groups, axis=1).reshape(rows.shape)
