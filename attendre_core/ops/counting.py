"""Count flags, always as int32: the standard has no sum of booleans."""

from __future__ import annotations

import math

from attendre_core.backend import Array, namespace_of, op

__all__ = ["LARGEST", "count_true", "finite_entries", "running_count"]

#: Keys, values and queries are smaller than this, so that logits and their sums fit into float32:
#: products of 4,096 pairs stay below 2**124, and scales and several terms have room above.
LARGEST = 2.0**56


@op
def count_true(flags: Array, *, axis: int | tuple[int, ...], keepdims: bool = False) -> Array:
    """Count the True values along ``axis``, as int32.

    Examples
    --------
    >>> import numpy as np
    >>> count_true(np.asarray([[True, False, True]]), axis=-1).tolist()
    [2]
    """
    xp = namespace_of(flags)
    return xp.sum(xp.astype(flags, xp.int32), axis=axis, keepdims=keepdims, dtype=xp.int32)


@op
def running_count(flags: Array) -> Array:
    """Count the True values along the last axis, up to and including each place, as int32.

    Examples
    --------
    >>> import numpy as np
    >>> running_count(np.asarray([[True, False, True]])).tolist()
    [[1, 1, 2]]
    """
    xp = namespace_of(flags)
    return xp.cumulative_sum(xp.astype(flags, xp.int32), axis=-1, dtype=xp.int32)


@op
def finite_entries(x: Array, keep: tuple[int, ...], below: float = math.inf) -> Array:
    """Return which entries are all finite and less than ``below`` in absolute value.

    Reduces over all axes except ``keep``.

    Examples
    --------
    >>> import numpy as np
    >>> finite_entries(np.asarray([[1.0, np.nan], [2.0, 3.0]]), (0,)).tolist()
    [False, True]
    >>> finite_entries(np.asarray([[1.0, -1e30], [2.0, 3.0]]), (0,), below=1e20).tolist()
    [False, True]
    """
    xp = namespace_of(x)
    # What float16 cannot hold is no limit to it.
    bounded = below < math.inf and below < float(xp.finfo(x.dtype).max)
    finite = xp.abs(x) < below if bounded else xp.isfinite(x)
    axes = tuple(axis for axis in range(x.ndim) if axis not in keep)
    return xp.all(finite, axis=axes) if axes else finite
