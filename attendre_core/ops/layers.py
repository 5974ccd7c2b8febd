"""Building blocks of model layers, and rotations."""

from __future__ import annotations

from attendre_core.backend import Array, namespace_of, op

__all__ = ["erf", "linear", "rms_norm", "rotate_at", "rotate_halves", "silu"]

#: Abramowitz and Stegun, Handbook of Mathematical Functions, formula 7.1.26.
_RATE = 0.3275911
_COEFFICIENTS = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


@op
def erf(x: Array) -> Array:
    """Return the error function, with an absolute error below 5e-7.

    Examples
    --------
    >>> import numpy as np
    >>> [round(float(v), 6) for v in erf(np.asarray([0.0, 0.5, -2.0]))]
    [0.0, 0.5205, -0.995322]
    """
    xp = namespace_of(x)
    size = xp.abs(x)
    t = 1.0 / (1.0 + _RATE * size)
    series = xp.zeros_like(x)
    for coefficient in reversed(_COEFFICIENTS):
        series = (series + coefficient) * t
    rest = series * xp.exp(-size * size)
    value = xp.where(x >= 0, 1.0 - rest, rest - 1.0)
    return xp.where(x == 0, xp.zeros_like(x), value)


@op
def linear(x: Array, weight: Array, bias: Array | None = None) -> Array:
    """Multiply by a weight, (out, in), and add a bias, (out,).

    Examples
    --------
    >>> import numpy as np
    >>> linear(np.ones((1, 2)), np.asarray([[1.0, 2.0]]), np.asarray([10.0])).tolist()
    [[13.0]]
    """
    xp = namespace_of(x, weight, bias)
    y = xp.matmul(x, xp.matrix_transpose(weight))
    return y if bias is None else y + bias


@op
def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Divide by the root mean square in at least float32, then multiply by ``weight``.

    Examples
    --------
    >>> import numpy as np
    >>> rms_norm(np.asarray([3.0, 3.0]), np.asarray([1.0, 2.0]), 0.0).tolist()
    [1.0, 2.0]
    """
    xp = namespace_of(x, weight)
    wide = xp.astype(x, xp.float32) if xp.finfo(x.dtype).bits < 32 else x
    wide = wide / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    return xp.astype(wide, x.dtype) * weight


@op
def silu(x: Array) -> Array:
    """Return x times its logistic function.

    Examples
    --------
    >>> import numpy as np
    >>> silu(np.asarray([0.0])).tolist()
    [0.0]
    """
    return x / (1.0 + namespace_of(x).exp(-x))


@op
def rotate_halves(x: Array, cosine: Array, sine: Array) -> Array:
    """Rotate each feature i together with feature i + n, where ``x`` is (..., 2n).

    ``cosine`` and ``sine`` are (..., n).

    Examples
    --------
    >>> import numpy as np
    >>> rotate_halves(np.asarray([1.0, 2.0]), np.asarray([0.0]), np.asarray([1.0])).tolist()
    [-2.0, 1.0]
    """
    xp = namespace_of(x, cosine, sine)
    half = cosine.shape[-1]
    left, right = x[..., :half], x[..., half:]
    return xp.concat([left * cosine - right * sine, right * cosine + left * sine], axis=-1)


@op
def rotate_at(x: Array, position: Array, frequency: Array) -> Array:
    """Rotate halves, as in `rotate_halves`, by position times frequency.

    Parameters
    ----------
    x
        (..., 2n).
    position
        Integer, broadcastable to the shape of ``x`` without its last axis.
    frequency
        (n,), in the dtype of ``x``.

    Examples
    --------
    >>> import numpy as np
    >>> turned = rotate_at(np.asarray([1.0, 2.0]), np.asarray(1), np.asarray([np.pi / 2]))
    >>> turned.round(6).tolist()
    [-2.0, 1.0]
    """
    xp = namespace_of(x, position, frequency)
    angle = xp.astype(position, x.dtype)[..., None] * frequency
    return rotate_halves(x, xp.cos(angle), xp.sin(angle))
