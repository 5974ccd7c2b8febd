"""What all models are built of: linear maps, norms, activations, embeddings."""

from __future__ import annotations

import math
from typing import Any

from attendre_core.backend import Array, backend_of, kernel
from attendre_core.errors import ConfigError
from attendre_core.ops.erf import erf
from attendre_core.ops.lookup import take_rows

__all__ = [
    "ACTIVATIONS",
    "activate",
    "embedded",
    "layer_norm",
    "linear",
    "merged_heads",
    "rms_norm",
    "split_heads",
]

Params = dict[str, Any]

#: Names that checkpoints use for their activation functions.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")


def linear(params: Params, name: str, x: Array) -> Array:
    """Multiply by the weight ``name``, (out, in), and add its bias if there is one."""
    weight, bias = params[name], params.get(f"{name}_bias")
    fast = kernel("linear", x)
    if fast is not None:
        return fast(x, weight, bias)
    xp = backend_of(x).xp
    y = xp.matmul(x, xp.matrix_transpose(weight))
    return y if bias is None else y + bias


def rms_norm(weight: Array, x: Array, eps: float, *, centred: bool = False) -> Array:
    """Divide by the root mean square and multiply by ``weight``; computed in float32.

    A ``centred`` weight is stored minus one and applied before rounding, as in Gemma.
    """
    fast = None if centred else kernel("rms_norm", x)
    if fast is not None:
        return fast(weight, x, eps)
    xp = backend_of(x).xp
    wide = _wide(x)
    wide = wide / xp.sqrt(xp.mean(wide * wide, axis=-1, keepdims=True) + eps)
    if centred:
        return xp.astype(wide * (1.0 + _wide(weight)), x.dtype)
    return xp.astype(wide, x.dtype) * weight


def layer_norm(weight: Array, bias: Array | None, x: Array, eps: float) -> Array:
    """Subtract the mean, divide by the standard deviation, scale and shift; in float32."""
    xp = backend_of(x).xp
    wide = _wide(x)
    wide = wide - xp.mean(wide, axis=-1, keepdims=True)
    spread = xp.mean(wide * wide, axis=-1, keepdims=True)
    y = wide / xp.sqrt(spread + eps) * _wide(weight)
    return xp.astype(y if bias is None else y + _wide(bias), x.dtype)


def activate(name: str, x: Array) -> Array:
    """Apply an activation function by the name that checkpoints use.

    Examples
    --------
    >>> import numpy as np
    >>> activate("relu", np.asarray([-1.0, 2.0])).tolist()
    [0.0, 2.0]
    """
    xp = backend_of(x).xp
    if name == "relu":
        return xp.maximum(x, xp.zeros_like(x))
    if name in ("silu", "swish"):
        fast = kernel("silu", x)
        return x / (1.0 + xp.exp(-x)) if fast is None else fast(x)
    if name == "gelu":
        return 0.5 * x * (1.0 + erf(x * math.sqrt(0.5)))
    if name in ("gelu_new", "gelu_pytorch_tanh"):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + xp.tanh(inner))
    raise ConfigError(f"activation: {name!r} is not known; known are {', '.join(ACTIVATIONS)}.")


def embedded(table: Array, tokens: Array) -> Array:
    """Look token ids up: (vocabulary, dim) and (batch, seq) give (batch, seq, dim)."""
    return take_rows(table, tokens)


def split_heads(x: Array, heads: int) -> Array:
    """Turn (batch, seq, heads * dim) into (batch, seq, heads, dim)."""
    xp = backend_of(x).xp
    return xp.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))


def merged_heads(x: Array) -> Array:
    """Turn (batch, seq, heads, dim) into (batch, seq, heads * dim)."""
    xp = backend_of(x).xp
    return xp.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]))


def _wide(x: Array) -> Array:
    xp = backend_of(x).xp
    return xp.astype(x, xp.float32) if xp.finfo(x.dtype).bits < 32 else x
