"""AdamW on named arrays of any library, as pure functions."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core.backend import Array, backend_of

__all__ = ["Moments", "adamw", "no_moments"]

_FIRST, _SECOND, _EPSILON = 0.9, 0.98, 1e-8


class Moments(NamedTuple):
    """Running means of the gradients and of their squares, by name."""

    mean: dict[str, Array]
    square: dict[str, Array]


def no_moments(arrays: dict[str, Array]) -> Moments:
    """Return the moments before the first step, which are zeros."""
    zeros = {name: array * 0.0 for name, array in arrays.items()}
    return Moments(zeros, dict(zeros))


def adamw(
    arrays: dict[str, Array],
    gradients: dict[str, Array],
    moments: Moments,
    *,
    step: Any,
    rate: Any,
    decay: float,
    most: float = 1.0,
) -> tuple[dict[str, Array], Moments]:
    """Return the arrays after one step, and the new moments.

    Parameters
    ----------
    step
        Number of the step, from 1.
    rate
        Learning rate of this step.
    decay
        Weight decay of arrays with at least two axes; vectors do not decay.
    most
        Largest norm of all gradients together; larger gradients are scaled down to it.

    Examples
    --------
    >>> import numpy as np
    >>> arrays = {"w": np.asarray([1.0])}
    >>> new, _ = adamw(arrays, {"w": np.asarray([0.5])}, no_moments(arrays),
    ...                step=1, rate=0.1, decay=0.0)
    >>> new["w"].round(6).tolist()
    [0.9]
    """
    xp = backend_of(next(iter(gradients.values()))).xp
    norm = xp.sqrt(sum(xp.sum(g * g) for g in gradients.values()))
    shrink = most / xp.maximum(norm, xp.full_like(norm, most))
    after, means, squares = {}, {}, {}
    for name, array in arrays.items():
        gradient = gradients[name] * shrink
        mean = _FIRST * moments.mean[name] + (1 - _FIRST) * gradient
        square = _SECOND * moments.square[name] + (1 - _SECOND) * gradient * gradient
        up = mean / (1 - _FIRST**step)
        down = xp.sqrt(square / (1 - _SECOND**step)) + _EPSILON
        kept = array if array.ndim < 2 else array * (1 - rate * decay)
        after[name] = kept - rate * up / down
        means[name], squares[name] = mean, square
    return after, Moments(means, squares)
