"""From rotation in neighbouring pairs, as GGUF and llama2.c store it, to rotation in halves."""

from __future__ import annotations

from typing import Any

__all__ = ["in_halves"]


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
