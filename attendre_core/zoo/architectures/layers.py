"""What all models are built of: linear maps by name, norms, activations, embeddings, heads."""

from __future__ import annotations

import math
from typing import Any

from attendre_core import ops
from attendre_core.backend import Array, backend_of, wide
from attendre_core.errors import ConfigError

__all__ = [
    "ACTIVATIONS",
    "MOST_TYPES",
    "activate",
    "embedded",
    "layer_norm",
    "linear",
    "merged_heads",
    "split_heads",
    "typed",
]

Params = dict[str, Any]

#: Names that checkpoints use for their activation functions.
ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")
#: Types of tokens that an encoder may tell apart: question and passage, rarely more.
MOST_TYPES = 64


def linear(params: Params, name: str, x: Array) -> Array:
    """Multiply by the weight ``name``, (out, in), and add its bias; or call what is there."""
    weight = params[name]
    if callable(weight):  # a module of its own, such as one with an adapter
        return weight(x)
    return ops.linear(x, weight, params.get(f"{name}_bias"))


def layer_norm(weight: Array, bias: Array | None, x: Array, eps: float) -> Array:
    """Subtract the mean, divide by the standard deviation, scale and shift; in float32."""
    xp = backend_of(x).xp
    centred = wide(x)
    centred = centred - xp.mean(centred, axis=-1, keepdims=True)
    spread = xp.mean(centred * centred, axis=-1, keepdims=True)
    y = centred / xp.sqrt(spread + eps) * wide(weight)
    return xp.astype(y if bias is None else y + wide(bias), x.dtype)


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
    if name == "tanh":
        return xp.tanh(x)
    if name in ("silu", "swish"):
        return ops.silu(x)
    if name == "gelu":
        return 0.5 * x * (1.0 + ops.erf(x * math.sqrt(0.5)))
    if name in ("gelu_new", "gelu_pytorch_tanh"):
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)
        return 0.5 * x * (1.0 + xp.tanh(inner))
    raise ConfigError(f"activation: {name!r} is not known; known are {', '.join(ACTIVATIONS)}.")


def embedded(table: Array, tokens: Array) -> Array:
    """Look token ids up: (vocabulary, dim) and (batch, seq) give (batch, seq, dim)."""
    return ops.take_rows(table, tokens)


def typed(table: Array, types: Array | None) -> Array:
    """Look types of tokens up, (batch, seq); without any, all are of type 0: (1, dim)."""
    return table[:1, :] if types is None else embedded(table, types)


def split_heads(x: Array, heads: int) -> Array:
    """Turn (batch, seq, heads * dim) into (batch, seq, heads, dim)."""
    xp = backend_of(x).xp
    return xp.reshape(x, (*x.shape[:2], heads, x.shape[2] // heads))


def merged_heads(x: Array) -> Array:
    """Turn (batch, seq, heads, dim) into (batch, seq, heads * dim)."""
    xp = backend_of(x).xp
    return xp.reshape(x, (*x.shape[:2], x.shape[2] * x.shape[3]))
