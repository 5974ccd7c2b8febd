"""Combine what the heads of a memory say about an entry."""

from __future__ import annotations

from attendre_core.backend import Array, namespace_of, op

__all__ = ["over_heads"]


@op
def over_heads(x: Array, how: str = "sum", *, per_head: bool = False) -> Array:
    """Combine the heads that decide together, so that all of them keep the same entries.

    This is the only place where scores of different heads meet. A backend whose heads are spread
    over devices combines them across devices here.

    Parameters
    ----------
    x
        (batch, G, R, ...): G K/V heads with R query heads each.
    how
        ``"sum"``, ``"max"`` or ``"mean"``; ``"any"`` for booleans.
    per_head
        Whether each K/V head decides for itself: axis G stays.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.asarray([[[[1.0, 2.0]], [[3.0, 5.0]]]])  # 2 K/V heads, 2 slots
    >>> over_heads(scores).tolist(), over_heads(scores, "max", per_head=True).tolist()
    ([[4.0, 7.0]], [[[1.0, 2.0], [3.0, 5.0]]])
    """
    xp = namespace_of(x)
    axes: tuple[int, ...] = (2,) if per_head else (1, 2)
    if how == "any":
        return xp.any(x, axis=axes)
    if how == "max":
        return xp.max(x, axis=axes)
    total = xp.sum(x, axis=axes, dtype=x.dtype)
    return total / (x.shape[2] * (1 if per_head else x.shape[1])) if how == "mean" else total
