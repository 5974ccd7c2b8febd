"""Tables of fixed numbers, such as rotary frequencies, on the device of an array."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from attendre_core.backend import Array, backend_of, op

__all__ = ["table"]


@op
def table(like: Array, make: Callable[..., Any], *spec: Hashable, dtype: Any) -> Array:
    """Return ``make(*spec)`` as an array in the library and on the device of ``like``.

    A kernel keeps the array for the next call, so that a step copies nothing from the host. It
    must therefore not be written to. A table that is made while a function is traced is a constant
    of the program, and is not kept, unless the kernel makes it an input of the program.

    Parameters
    ----------
    like
        The array with which the table will be used.
    make
        Returns numbers, nested lists of them, or a NumPy array: the same for the same arguments.
    spec
        Its arguments, which can be hashed.
    dtype
        Of the array.

    Examples
    --------
    >>> import numpy as np
    >>> table(np.zeros(1), list, (2, 4), dtype=np.int32).tolist()
    [2, 4]
    """
    found = backend_of(like)
    return found.xp.asarray(make(*spec), dtype=dtype, device=found.device_of(like))
