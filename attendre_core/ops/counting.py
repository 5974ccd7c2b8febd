"""Count flags, always as int32: the standard sums only numbers, and each library its own way."""

from __future__ import annotations

from attendre_core.backend import Array, kernel, namespace_of

__all__ = ["count_true", "running_count"]


def count_true(flags: Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
    """Return how many are True along ``axis``, int32.

    Examples
    --------
    >>> import numpy as np
    >>> count_true(np.asarray([[True, False, True]]), axis=-1).tolist()
    [2]
    """
    fast = kernel("count_true", flags)
    if fast is not None:
        return fast(flags, axis, keepdims)
    xp = namespace_of(flags)
    return xp.sum(xp.astype(flags, xp.int32), axis=axis, keepdims=keepdims, dtype=xp.int32)


def running_count(flags: Array) -> Array:
    """Count the True ones along the last axis up to and including each place, int32.

    Examples
    --------
    >>> import numpy as np
    >>> running_count(np.asarray([[True, False, True]])).tolist()
    [[1, 1, 2]]
    """
    fast = kernel("running_count", flags)
    if fast is not None:
        return fast(flags)
    xp = namespace_of(flags)
    return xp.cumulative_sum(xp.astype(flags, xp.int32), axis=-1, dtype=xp.int32)
