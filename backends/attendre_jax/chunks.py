"""Cut whole inputs into stacked chunks, as `jax.lax.scan` expects them, and join them again."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attendre_core import checks
from attendre_core.backend import Array
from attendre_core.layer.chunks import fill_up

__all__ = ["joined_chunks", "split_chunks"]


def split_chunks(tree: Any, length: int) -> Any:
    """Cut (batch, time, ...) arrays into (chunks, batch, length, ...).

    Parameters
    ----------
    tree
        Nested arrays, e.g. a `Chunk` of a whole input. None stays None.
    length
        S. The last chunk is padded with zeros (False for flags): pass ``valid`` unless the time
        is a multiple of S.

    Examples
    --------
    >>> split_chunks(jnp.arange(6).reshape(1, 6), 4).tolist()
    [[[0, 1, 2, 3]], [[4, 5, 0, 0]]]
    """
    checks.whole_number(
        "split_chunks", "length", length, least=1, hint="128 is the paper's choice."
    )

    def cut(array: Array) -> Array:
        batch, time, *rest = array.shape
        count = -(-time // length)
        filled = fill_up(array, count * length)
        return jnp.moveaxis(filled.reshape(batch, count, length, *rest), 1, 0)

    return jax.tree.map(cut, tree)


def joined_chunks(tree: Any) -> Any:
    """Join (chunks, batch, length, ...) arrays to (batch, time, ...).

    Examples
    --------
    >>> joined_chunks(jnp.asarray([[[0, 1]], [[2, 3]]])).tolist()
    [[0, 1, 2, 3]]
    """

    def join(array: Array) -> Array:
        count, batch, length, *rest = array.shape
        return jnp.moveaxis(array, 0, 1).reshape(batch, count * length, *rest)

    return jax.tree.map(join, tree)
