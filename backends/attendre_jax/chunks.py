"""Whole inputs as stacked chunks, the shape in which `jax.lax.scan` wants them, and back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from attendre_core import checks
from attendre_core.backend import Array

__all__ = ["joined_chunks", "placed", "split_chunks"]


def split_chunks(tree: Any, length: int) -> Any:
    """Cut (batch, time, ...) arrays into (chunks, batch, length, ...).

    Parameters
    ----------
    tree
        Nested arrays; a `Chunk` of a whole input, say. None stays None.
    length
        S. What is missing in the last chunk is filled with zeros, which is False for flags: give
        ``valid`` unless the time is a multiple of it.

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
        filled = jnp.pad(array, ((0, 0), (0, count * length - time), *[(0, 0)] * len(rest)))
        return jnp.moveaxis(filled.reshape(batch, count, length, *rest), 1, 0)

    return jax.tree.map(cut, tree)


def joined_chunks(tree: Any) -> Any:
    """Put (chunks, batch, length, ...) arrays together to (batch, time, ...).

    Examples
    --------
    >>> joined_chunks(jnp.asarray([[[0, 1]], [[2, 3]]])).tolist()
    [[0, 1, 2, 3]]
    """

    def join(array: Array) -> Array:
        count, batch, length, *rest = array.shape
        return jnp.moveaxis(array, 0, 1).reshape(batch, count * length, *rest)

    return jax.tree.map(join, tree)


def placed(x: Array, place: Array, valid: Array, length: int) -> Array:
    """Put what came out late into its place.

    Parameters
    ----------
    x
        (batch, n, ...).
    place, valid
        (batch, n): where each belongs, and whether it is real.

    Returns
    -------
    array
        (batch, length, ...): zeros where nothing came.

    Examples
    --------
    >>> x, at = jnp.asarray([[7.0, 8.0, 9.0]]), jnp.asarray([[0, 1, 0]])
    >>> placed(x, at, jnp.asarray([[False, True, True]]), 2).tolist()
    [[9.0, 8.0]]
    """
    outside = jnp.where(valid, place, length)

    def put(where: Array, values: Array) -> Array:
        empty = jnp.zeros((length, *values.shape[1:]), dtype=values.dtype)
        return empty.at[where].set(values, mode="drop")

    return jax.vmap(put)(outside, x)
