"""Softmax over the allowed entries only."""

from __future__ import annotations

from attendre_core.backend import Array, kernel, namespace_of

__all__ = ["masked_softmax"]


def masked_softmax(logits: Array, allowed: Array | None) -> Array:
    """Softmax over the last axis, counting only the allowed entries.

    Parameters
    ----------
    logits
        Real floating, any shape. What stands where ``allowed`` is False never matters, NaN
        included.
    allowed
        Boolean, broadcastable to ``logits``; None = everything.

    Returns
    -------
    array
        Weights of the same shape; a row with nothing allowed is all zeros, never NaN.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.asarray([[0.0, 0.0, 9.0], [1.0, 2.0, 3.0]])
    >>> masked_softmax(x, np.asarray([[True, True, False], [False] * 3])).tolist()
    [[0.5, 0.5, 0.0], [0.0, 0.0, 0.0]]
    """
    fast = kernel("masked_softmax", logits)
    if fast is not None:
        return fast(logits, allowed)
    xp = namespace_of(logits, allowed)
    masked = logits if allowed is None else xp.where(allowed, logits, -float("inf"))
    top = xp.max(masked, axis=-1, keepdims=True)
    top = xp.where(top == -float("inf"), xp.zeros_like(top), top)
    raised = xp.exp(masked - top)
    total = xp.sum(raised, axis=-1, keepdims=True, dtype=raised.dtype)
    return raised / xp.where(total > 0, total, xp.ones_like(total))
