"""Memformer: every slot attends to itself and to the tokens, then forgets a little."""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core import ops
from attendre_core.backend import Array, namespace_of
from attendre_core.written.base import Parameters, Writer

__all__ = ["Memformer"]


@dataclass(frozen=True)
class Memformer(Writer):
    """Slot attention and forgetting by a bias (arXiv 2010.06891).

    A slot m is a query to its own key and to those of the tokens, not to other slots; its value is
    m itself, the tokens' values are projected: m' = softmax([q.k_m ; q.K] / (sqrt(d) temperature))
    [m ; V]. Then it forgets: m' + b, made of length 1, with a learned b for each slot, which is
    also where it begins, at length 1.

    Parameters
    ----------
    temperature
        Less than 1 makes slots choose between keeping and writing.

    Notes
    -----
    Differs from the original: one head; the tokens are written as they are given, where the
    original takes those of its encoder's last layer.

    Examples
    --------
    >>> Memformer(size=4).parameters(dim=8)
    {'to_query': (8, 8), 'to_key': (8, 8), 'to_value': (8, 8), 'forget': (4, 8)}
    """

    temperature: float = 0.25

    def parameters(self, dim: int) -> dict[str, tuple[int, ...]]:
        """Return three projections, and where slots drift to while nothing is written."""
        square = dict.fromkeys(("to_query", "to_key", "to_value"), (dim, dim))
        return {**square, "forget": (self.size, dim)}

    def start(self, params: Parameters) -> Array:
        """Return the biases, with length 1."""
        return _unit(params["forget"])

    def write(
        self, params: Parameters, slots: Array, x: Array, y: Array | None, valid: Array
    ) -> Array:
        """Attend to [itself ; tokens], add the bias, normalise."""
        xp, scale = namespace_of(slots), slots.shape[-1] ** -0.5 / self.temperature
        query, own = (xp.matmul(slots, params[name]) for name in ("to_query", "to_key"))
        key, value = (xp.matmul(x, params[name]) for name in ("to_key", "to_value"))
        to_self = xp.sum(query * own, axis=-1, keepdims=True, dtype=query.dtype)
        to_tokens = xp.matmul(query, xp.matrix_transpose(key))
        allowed = xp.broadcast_to(valid[:, None, :], to_tokens.shape)
        allowed = xp.concat([xp.ones_like(to_self, dtype=xp.bool), allowed], axis=-1)
        weight = ops.masked_softmax(scale * xp.concat([to_self, to_tokens], axis=-1), allowed)
        read = weight[..., :1] * slots + xp.matmul(weight[..., 1:], value)
        return _unit(read + params["forget"][None, ...])


def _unit(x: Array) -> Array:
    """Return vectors of length 1; the least number keeps a zero vector zero."""
    xp = namespace_of(x)
    return x / xp.sqrt(xp.sum(x * x, axis=-1, keepdims=True, dtype=x.dtype) + 1e-12)
