"""The contract between a written memory and the network that writes it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from attendre_core import checks, ops
from attendre_core.backend import Array, Backend, Namespace, namespace_of, resolve
from attendre_core.errors import ConfigError

__all__ = ["Parameters", "Writer", "attend", "logistic", "ready", "shapes_of"]

Parameters = dict[str, Array]


@dataclass(frozen=True)
class Writer:
    """Base of all writers: subclass it, and say which arrays it has and what `write` returns.

    Laws: `write` is a pure function in array operations that reads no value; slots of a row depend
    on that row alone; tokens that are not valid change nothing, whatever they hold, and however
    many there are.

    Parameters
    ----------
    size
        How many slots a row has.

    Examples
    --------
    Slots that add up the mean of what was read:

    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import attendre_core as at
    >>> @dataclass(frozen=True)
    ... class Sum(at.Writer):
    ...     def parameters(self, dim):
    ...         return {}
    ...     def write(self, params, slots, x, y, valid):
    ...         real = valid[..., None]
    ...         return slots + np.sum(x * real, 1, keepdims=True) / np.sum(real, 1, keepdims=True)
    >>> memory = at.WrittenMemory(Sum(2))
    >>> state = memory.init(batch=1, dim=1)
    >>> memory.write(state, {}, np.asarray([[[1.0], [3.0]]], np.float32)).slots.tolist()
    [[[2.0], [2.0]]]
    """

    size: int = 16

    def __post_init__(self) -> None:
        hint = "It counts slots per row."
        checks.whole_number(type(self).__name__, "size", self.size, least=1, hint=hint)

    def parameters(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the learned arrays, for tokens and slots of ``dim`` numbers."""
        raise NotImplementedError(f"{type(self).__name__} has to say which parameters it has.")

    def init(
        self,
        dim: int,
        seed: int = 0,
        xp: Namespace | str | Backend = "numpy",
        dtype: str = "float32",
    ) -> Parameters:
        """Draw the learned arrays: normal with variance 1 / (their inputs); biases are 0."""
        backend, rng = resolve(xp), np.random.default_rng(seed)

        def drawn(name: str, shape: tuple[int, ...]) -> Array:
            inputs = prod(shape[:-1]) if name.startswith("to_") else shape[-1]
            scale = 0.0 if name.endswith("bias") else inputs**-0.5
            return backend.from_numpy((scale * rng.standard_normal(shape)).astype(dtype))

        return {name: drawn(name, shape) for name, shape in self.parameters(dim).items()}

    def start(self, params: Parameters) -> Array | None:
        """Return the slots of an empty memory, (size, dim); None = zeros."""
        return None

    def write(
        self, params: Parameters, slots: Array, x: Array, y: Array | None, valid: Array
    ) -> Array:
        """Return the new slots, (batch, size, dim).

        Parameters
        ----------
        slots
            (batch, size, dim).
        x, y
            (batch, seq, dim): what was read, and what the network made of it, or None.
        valid
            Boolean, (batch, seq); tokens that are not valid hold zeros.
        """
        raise NotImplementedError(f"{type(self).__name__} has to say how it writes.")


def attend(query: Array, key: Array, value: Array, allowed: Array, heads: int) -> Array:
    """Attend with heads, (batch, queries, dim) to (batch, tokens, dim), scaled as usual.

    Parameters
    ----------
    allowed
        Boolean, broadcastable to (batch, queries, tokens).
    """
    xp, (batch, count, dim) = namespace_of(query), query.shape

    def split(x: Array) -> Array:
        parts = xp.reshape(x, (batch, x.shape[1], heads, dim // heads))
        return xp.permute_dims(parts, (0, 2, 1, 3))

    rows = split(query)[:, :, None, ...] * (dim // heads) ** -0.5
    output = ops.attention(rows, split(key), split(value), allowed[:, None, None, ...])
    return xp.reshape(xp.permute_dims(output[:, :, 0, ...], (0, 2, 1, 3)), (batch, count, dim))


def logistic(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 0.5 * (1.0 + namespace_of(x).tanh(0.5 * x))


def shapes_of(where: str, heads: int, dim: int, *names: str) -> dict[str, tuple[int, ...]]:
    """Return square projections by these names, after checking the heads."""
    if heads < 1 or dim % heads:
        raise ConfigError(
            f"{where}: heads is {heads} for slots of {dim} numbers, expected a divisor of it."
        )
    found: dict[str, tuple[int, ...]] = dict.fromkeys(names, (dim, dim))
    return found


def ready(where: str, writer: Writer, params: Any, dim: int) -> None:
    """Refuse parameters that are missing or of another shape."""
    wanted = writer.parameters(dim)
    given = {name: tuple(params[name].shape) for name in wanted if name in (params or {})}
    if given != wanted:
        raise ConfigError(
            f"{where}: the parameters have shapes {given}, expected {wanted}. Make them with "
            f"{type(writer).__name__}.init(dim={dim})."
        )
