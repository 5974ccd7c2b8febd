"""Tell in one pass whether numbers are finite, where a library can do that faster."""

from __future__ import annotations

from attendre_core.backend import Array, backend_of, kernel

__all__ = ["surely_finite"]


def surely_finite(x: Array) -> bool:
    """Tell whether all numbers are known to be finite.

    False means nothing: some may be infinite or NaN, some may be so large that their sum is not
    finite, the values may not be read now, or the backend brings no kernel for it.

    Examples
    --------
    >>> import numpy as np
    >>> surely_finite(np.ones(3, dtype=np.float32)), surely_finite(np.asarray([1.0, np.nan]))
    (True, False)
    """
    fast = kernel("surely_finite", x)
    return fast is not None and backend_of(x).is_concrete(x) and bool(fast(x))
