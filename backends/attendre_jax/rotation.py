"""Rotations on the CPU, with cosine and sine of an angle together.

XLA computes each of them by itself, slowly for large angles, and again for every head. Here both
come from one reduction to [-pi/4, pi/4] and two short polynomials, with errors below 2e-7.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attendre_core.ops.layers import rotate_halves

__all__ = ["rotate_at"]

#: Beyond this angle, errors grow: quarter turns are no longer counted exactly.
_LARGEST = 2.0**20
#: pi/2 in three numbers: products of the first two with numbers of 13 bits are exact in float32.
_QUARTER = tuple(np.float32(x) for x in (1.5703125, 4.837512969970703125e-4, 7.5497899548918822e-8))
#: sin(x) = x + x^3 (...) and cos(x) = 1 - x^2 / 2 + x^4 (...), for x in [-pi/4, pi/4].
_SINE = tuple(np.float32(x) for x in (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1))
_COSINE = tuple(
    np.float32(x) for x in (2.443315711809948e-5, -1.388731625493765e-3, 4.1666645683e-2)
)
_BITS = np.float32(2.0**13)


def rotate_at(x: jax.Array, position: jax.Array, frequency: jax.Array) -> Any:
    """Rotate halves on one CPU; decline all but float32, and several devices.

    Whether an angle is too large is asked of all of them: on a mesh, devices would have to meet.
    """
    if x.dtype != jnp.float32 or jax.default_backend() != "cpu" or jax.device_count() > 1:
        return NotImplemented
    return _rotated(x, position, frequency)


def _turned(x: jax.Array, position: jax.Array, frequency: jax.Array) -> jax.Array:
    angle = position.astype(x.dtype)[..., None] * frequency
    small = jnp.max(jnp.abs(angle), initial=0.0) < _LARGEST
    cosine, sine = lax.cond(small, _both, lambda a: (jnp.cos(a), jnp.sin(a)), angle)
    rotated: jax.Array = rotate_halves(x, cosine, sine)
    return rotated


#: Compiled, or every operation of an eager call would be a pass over all angles.
_rotated = jax.jit(_turned)


def _both(angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return cosine and sine of angles below the largest."""
    count = jnp.round(angle * np.float32(2 / np.pi))
    coarse = jnp.round(count / _BITS) * _BITS
    rest = angle
    for part in _QUARTER:
        rest = rest - coarse * part - (count - coarse) * part
    square = rest * rest
    sine = rest + rest * square * _polynomial(square, _SINE)
    cosine = 1.0 - 0.5 * square + square * square * _polynomial(square, _COSINE)
    quarter = count.astype(jnp.int32)
    is_odd = (quarter & 1) == 1
    turned = jnp.where(is_odd, sine, cosine), jnp.where(is_odd, cosine, sine)
    below = ((quarter + 1) & 2) != 0, (quarter & 2) != 0
    return jnp.where(below[0], -turned[0], turned[0]), jnp.where(below[1], -turned[1], turned[1])


def _polynomial(x: jax.Array, factors: tuple[Any, ...]) -> jax.Array:
    """Evaluate a polynomial; the factor of the highest power comes first."""
    result = jnp.full_like(x, factors[0])
    for factor in factors[1:]:
        result = result * x + factor
    return result
