"""Compute only what is needed, where the library lets us look or branch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attendre_core.backend import Array, backend_of, kernel

__all__ = ["all_true", "choose", "when"]


def all_true(flags: Array) -> bool:
    """Tell whether all flags are True, as far as that may be known now.

    False in compiled code, whatever the flags will be: use it to leave out what changes nothing.

    Examples
    --------
    >>> import numpy as np
    >>> all_true(np.asarray([True, True]))
    True
    """
    found = backend_of(flags)
    return found.is_concrete(flags) and bool(found.xp.all(flags))


def when(needed: Array, compute: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """Return ``compute()``, or ``otherwise()`` of the same shapes when it is not needed.

    Eager code looks, a backend with a branching kernel branches; compiled code without one
    computes, which is always right.

    Parameters
    ----------
    needed
        Boolean array without axes.

    Examples
    --------
    >>> import numpy as np
    >>> when(np.asarray(False), lambda: np.ones(2), lambda: np.zeros(2)).tolist()
    [0.0, 0.0]
    """
    if backend_of(needed).is_concrete(needed):
        return compute() if bool(needed) else otherwise()
    branch = kernel("branch", needed)
    return compute() if branch is None else branch(needed, compute, otherwise)


def choose(which: Array, branches: Sequence[Callable[[], Array]]) -> Array:
    """Return what one of several functions computes, all results of the same shape.

    As in `when`, eager code looks and a backend with a kernel branches; elsewhere the last
    function is taken, which must be right whatever ``which`` is.

    Parameters
    ----------
    which
        int32 array without axes: the number of the function.

    Examples
    --------
    >>> import numpy as np
    >>> choose(np.asarray(0), [lambda: np.zeros(2), lambda: np.ones(2)]).tolist()
    [0.0, 0.0]
    """
    if backend_of(which).is_concrete(which):
        return branches[int(which)]()
    fast = kernel("choose", which)
    return branches[-1]() if fast is None else fast(which, branches)
