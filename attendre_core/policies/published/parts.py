"""What several published policies share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attendre_core import ops
from attendre_core.backend import Array, backend_of, namespace_of, wide
from attendre_core.errors import ConfigError

if TYPE_CHECKING:
    from attendre_core.policies.base import Stored

__all__ = ["around", "check_window", "decided", "norms", "projected_norms", "real", "zero"]

#: Later than every arrival.
_NEVER = 2**31 - 1


def zero(stored: Stored) -> Array:
    """Return 0 for each row, the score of new entries that start from nothing."""
    return namespace_of(stored.score).zeros_like(stored.score[..., 0])


def real(x: Array, valid: Array) -> Array:
    """Return (batch, kv_heads, n, dim) in float32 or wider, with 0 where an entry is not valid.

    No gradient flows through it: scores choose, and are no part of what a model computes.

    Parameters
    ----------
    valid
        (batch, n) or (batch, kv_heads, n); what is stored beside it may be anything.
    """
    x = backend_of(x).stop_gradient(wide(x))
    flags = valid[..., None] if valid.ndim == 3 else valid[:, None, :, None]
    return ops.fill(x, ~flags, 0.0)


def norms(x: Array) -> Array:
    """Return the lengths of vectors, (..., dim) to (...)."""
    xp = namespace_of(x)
    return xp.sqrt(xp.sum(x * x, axis=-1, dtype=x.dtype))


def decided(x: Array, stored: Stored, how: str = "mean") -> Array:
    """Combine (batch, kv_heads, n) over the heads that decide together: shaped as scores are.

    Parameters
    ----------
    how
        ``"sum"``, ``"max"`` or ``"mean"``.
    """
    return ops.over_heads(x[:, :, None, ...], how, per_head=stored.score.ndim == 3)


def projected_norms(value: Array, params: Any) -> Array:
    """Return the L1 norm of each value times ``params["output"]``, (batch, kv_heads, n).

    It is averaged over the query heads of a K/V head; the projection is (heads, dim, model_dim).
    """
    if not (isinstance(params, dict) and "output" in params):
        raise ConfigError(
            f"Defensive: output_norm needs the output projection, and policy_params is "
            f"{type(params).__name__}. Pass policy_params={{'output': W}} with W of shape (heads, "
            "value_dim, model_dim), or use value_norm=True."
        )
    xp, heads = namespace_of(value), value.shape[1]
    by_head = wide(params["output"])
    by_head = xp.reshape(by_head, (1, heads, -1, *by_head.shape[1:]))
    added = xp.matmul(value[:, :, None, ...], by_head)
    return xp.mean(xp.sum(xp.abs(added), axis=-1, dtype=added.dtype), axis=2)


def around(x: Array, stored: Stored, reach: int, how: str = "sum") -> Array:
    """Combine scores, shaped as they are, of the entries that arrived up to ``reach`` away.

    Always from the oldest to the newest, so that equal neighbours give equal sums.

    Parameters
    ----------
    how
        ``"sum"``, or ``"max"`` for scores that are not negative.
    """
    xp = namespace_of(x)
    arrival = xp.where(stored.valid, stored.arrival, xp.full_like(stored.arrival, _NEVER))
    order = xp.argsort(arrival, axis=-1)
    arrival = xp.take_along_axis(arrival, order, axis=-1)
    x = xp.where(stored.valid, x, xp.zeros_like(x))
    x = xp.take_along_axis(x, order, axis=-1)
    total, slots = xp.zeros_like(x), x.shape[-1]
    margin = min(2 * reach, slots)  # an entry may be stored twice
    edge, far = (xp.full_like(y[..., :margin], z) for y, z in ((x, 0), (arrival, _NEVER)))
    x, when = xp.concat([edge, x, edge], axis=-1), xp.concat([far, arrival, far], axis=-1)
    for step in range(2 * margin + 1):
        near = xp.abs(when[..., step : step + slots] - arrival) <= reach
        there = xp.where(near, x[..., step : step + slots], xp.zeros_like(total))
        total = total + there if how == "sum" else xp.maximum(total, there)
    return xp.take_along_axis(total, xp.argsort(order, axis=-1), axis=-1)


def check_window(where: str, window: int | None) -> None:
    """Refuse a window without queries."""
    if window is not None and window < 1:
        raise ConfigError(
            f"{where}: window is {window}, expected how many queries count, 1 or more, or None "
            "for all queries of a step."
        )
