"""The error function, which the array API lacks."""

from __future__ import annotations

from attendre_core.backend import Array, kernel, namespace_of

__all__ = ["erf"]

#: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26.
_RATE = 0.3275911
_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def erf(x: Array) -> Array:
    """Return the error function, with an absolute error below 5e-7.

    Parameters
    ----------
    x
        Real floating.

    Examples
    --------
    >>> import numpy as np
    >>> [round(float(v), 6) for v in erf(np.asarray([0.0, 0.5, -2.0]))]
    [0.0, 0.5205, -0.995322]
    """
    fast = kernel("erf", x)
    if fast is not None:
        return fast(x)
    xp = namespace_of(x)
    size = xp.abs(x)
    t = 1.0 / (1.0 + _RATE * size)
    series = xp.zeros_like(x)
    for coefficient in reversed(_COEFFICIENTS):
        series = (series + coefficient) * t
    rest = series * xp.exp(-size * size)
    value = xp.where(x >= 0, 1.0 - rest, rest - 1.0)
    return xp.where(x == 0, xp.zeros_like(x), value)
