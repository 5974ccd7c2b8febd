"""Sinusoidal absolute positions (the first Transformer): added to the input, not to attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.lookup import take_rows
from attendre_core.positions.base import Encoding

__all__ = ["SinusoidalPositions"]

#: A position is taken apart into digits of this base; four of them reach 16 million.
_BASE, _DIGITS = 64, 4


@dataclass(frozen=True)
class SinusoidalPositions(Encoding):
    """Sines of a position at falling frequencies, then its cosines; the model adds them up.

    Attention itself then knows no positions. Nothing is stored and there is no end: a position
    of a million is as exact as the first, although only float32 is used.

    Parameters
    ----------
    dim
        Width of the input; if it is odd there is one more sine than cosines.
    steps
        Frequencies fall from 1 to 1/10000 in so many steps; None is dim / 2, the paper's
        choice, which stops one step short of the end. dim / 2 - 1 reaches it (tensor2tensor,
        OpenNMT).
    first
        The number of the first position.

    Examples
    --------
    >>> import numpy as np
    >>> SinusoidalPositions(4).embed(np.asarray([0, 1])).round(2).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.8399999737739563, 0.009999999776482582, 0.5400000214576721, 1.0]]
    """

    dim: int
    steps: float | None = None
    first: int = 0

    def __post_init__(self) -> None:
        if self.dim < 1 or (self.steps is not None and not 0 < self.steps < math.inf):
            raise ConfigError(
                f"SinusoidalPositions: dim is {self.dim} and steps {self.steps}, expected at "
                "least 1, and a positive number or None."
            )

    def embed(self, position: Array) -> Array:
        """Turn positions (...), integers from 0 to 2**24 - 1, into float32 (..., dim)."""
        found = backend_of(position)
        xp, device = found.xp, found.device_of(position)
        rest = position + self.first
        sines: Array = None
        cosines: Array = None
        # The angle is a sum over digits, so rotations by the digits are applied one after
        # another. Their tables are made in float64; angle = position * frequency in float32
        # would lose a digit of the result with each digit of the position.
        for rotation in _rotations(self.dim, self.steps or self.dim / 2):
            table = xp.asarray(rotation, device=device)
            turn = take_rows(table, xp.astype(rest % _BASE, xp.int32))
            sine, cosine = turn[..., 0, :], turn[..., 1, :]
            if sines is None:
                sines, cosines = sine, cosine
            else:
                sines, cosines = sines * cosine + cosines * sine, cosines * cosine - sines * sine
            rest = rest // _BASE
        return xp.concat([sines, cosines[..., : self.dim // 2]], axis=-1)


@lru_cache(maxsize=16)
def _rotations(dim: int, steps: float) -> tuple[Any, ...]:
    """Return sines and cosines of each digit, lowest first: float32, (base, 2, (dim + 1) / 2)."""
    frequency = np.exp(-math.log(10000.0) / steps * np.arange((dim + 1) // 2))
    digit = np.arange(_BASE, dtype=np.float64)
    angles = [digit[:, None] * _BASE**place * frequency for place in range(_DIGITS)]
    return tuple(
        np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32) for angle in angles
    )
