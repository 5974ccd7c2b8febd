"""Sinusoidal absolute positions (the original Transformer): added to the input."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.lookup import take_rows
from attendre_core.ops.tables import table
from attendre_core.positions.base import Encoding

__all__ = ["SinusoidalPositions"]

#: Positions are split into four digits of base 64, enough for 16 million.
_BASE, _DIGITS = 64, 4


@dataclass(frozen=True)
class SinusoidalPositions(Encoding):
    """Sines of the position at decreasing frequencies, then cosines, for the model to add.

    Attention itself applies no positions. There is no learned table, and position 1,000,000 is
    as exact as the first, although only float32 is used.

    Parameters
    ----------
    dim
        Width of the input; if it is odd, there is one more sine than cosines.
    steps
        In how many steps frequencies fall from 1 to 1/10000. None is dim / 2, as in the original
        Transformer, which stops one step short of 1/10000; dim / 2 - 1 reaches it (tensor2tensor,
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
        """Embed positions (...), integers from 0 to 2**24 - 1, as float32 (..., dim)."""
        xp = backend_of(position).xp
        steps = self.steps or self.dim / 2
        rest = position + self.first
        sines: Array = None
        cosines: Array = None
        # The angle is a sum over digits, so the rotations of the digits are applied one after
        # another, from tables computed in float64. Multiplying position and frequency in float32
        # would lose a digit of the result for each digit of the position.
        for place in range(_DIGITS):
            rotation = table(position, _rotation, self.dim, steps, place, dtype=xp.float32)
            row = take_rows(rotation, xp.astype(rest % _BASE, xp.int32))
            sine, cosine = row[..., 0, :], row[..., 1, :]
            if sines is None:
                sines, cosines = sine, cosine
            else:
                sines, cosines = sines * cosine + cosines * sine, cosines * cosine - sines * sine
            rest = rest // _BASE
        return xp.concat([sines, cosines[..., : self.dim // 2]], axis=-1)


def _rotation(dim: int, steps: float, place: int) -> Any:
    """Return sine and cosine of every digit at a place: float32, (base, 2, (dim + 1) / 2)."""
    frequency = np.exp(-math.log(10000.0) / steps * np.arange((dim + 1) // 2))
    digit = np.arange(_BASE, dtype=np.float64)
    angle = digit[:, None] * _BASE**place * frequency
    return np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
