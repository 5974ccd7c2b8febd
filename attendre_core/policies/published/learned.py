"""What policies with parameters share."""

from __future__ import annotations

from typing import Any

from attendre_core.backend import Array, namespace_of, wide
from attendre_core.errors import ConfigError

__all__ = ["given", "logistic", "shown", "sparse_sigmoid"]


def given(policy: Any, params: Any, *names: str) -> tuple[Array, ...]:
    """Return the named arrays of a policy's parameters; refuse if there are none."""
    missing = [name for name in names if not isinstance(params, dict) or name not in params]
    if missing:
        what = type(policy).__name__
        raise ConfigError(
            f"{what}: policy_params is {type(params).__name__} without {', '.join(missing)}. Pass "
            f"policy_params={{{', '.join(f'{name!r}: ...' for name in names)}}}; "
            f"{what}.parameters says their shapes."
        )
    return tuple(wide(params[name]) for name in names)


def shown(x: Array, valid: Array) -> Array:
    """Return (batch, kv_heads, n, dim) in float32 or wider, 0 where not valid, with gradients."""
    x, xp = wide(x), namespace_of(x)
    flags = valid[..., None] if valid.ndim == 3 else valid[:, None, :, None]
    return xp.where(flags, x, xp.zeros_like(x))


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + namespace_of(x).tanh(0.5 * x))


def sparse_sigmoid(x: Array, alpha: float) -> Array:
    """Return the first of the two numbers of the alpha-entmax of (x, 0).

    For alpha = 1 it is the sigmoid; for 1.5 it is 0 below -2 and 1 above 2, for 2 below -1 and
    above 1.
    """
    if alpha == 1.0:
        return logistic(x)
    xp = namespace_of(x)
    one = xp.ones_like(x)
    if alpha == 2.0:
        return 0.5 * (1.0 + xp.minimum(xp.maximum(x, -one), one))
    half = xp.minimum(xp.maximum(0.5 * x, -one), one)
    root = 0.5 * (half + xp.sqrt(2.0 - half * half))
    return root * root
