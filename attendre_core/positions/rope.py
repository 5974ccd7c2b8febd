"""Rotary positions (RoPE)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError
from attendre_core.ops.layers import rotate_at, rotate_halves
from attendre_core.ops.tables import table
from attendre_core.positions.base import Encoded, Encoding, Places, Term
from attendre_core.positions.scaling import Scaling

__all__ = ["RoPE"]


@dataclass(frozen=True)
class RoPE(Encoding):
    """Rotate pairs of features by an angle proportional to the position.

    Parameters
    ----------
    base
        A full turn of the slowest pair takes about 2 pi * base positions.
    scaling
        `Interpolation`, `NTK`, `YaRN` or `Llama3Scaling`, for inputs longer than those of training;
        or None.
    rotary_dim
        How many features to rotate, from the first; None = all.
    interleaved
        False pairs feature i with i + dim/2, as most public checkpoints do; True pairs 2i with
        2i + 1.

    Notes
    -----
    Law: the logit depends only on the difference of the positions. A pair is as exact after
    millions of positions as at the start, unless its positions are millions apart.

    Examples
    --------
    >>> RoPE(base=10000.0).scaling is None
    True
    """

    base: float = 10000.0
    scaling: Scaling | None = None
    rotary_dim: int | None = None
    interleaved: bool = False

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise ConfigError(f"RoPE: base is {self.base}, expected a positive number like 10000.")
        if self.rotary_dim is not None and (self.rotary_dim < 2 or self.rotary_dim % 2):
            raise ConfigError(
                f"RoPE: rotary_dim is {self.rotary_dim}, expected an even number of features."
            )

    @property
    def temperature(self) -> float:
        """The factor on queries and keys: 1, unless the scaling sharpens attention."""
        return 1.0 if self.scaling is None else self.scaling.temperature

    def frequencies(self, head_dim: int) -> list[float]:
        """Return the angle per position, for each pair of features."""
        dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if dim % 2 or dim > head_dim:
            raise ConfigError(
                f"RoPE: {dim} of {head_dim} features cannot be rotated in pairs. Use an even "
                "head_dim, or an even rotary_dim that is not larger."
            )
        plain = [self.base ** (-2 * i / dim) for i in range(dim // 2)]
        return plain if self.scaling is None else self.scaling.frequencies(plain, self.base, dim)

    def rotate(self, x: Array, position: Array) -> Array:
        """Rotate features by their positions.

        Parameters
        ----------
        x
            (..., head_dim).
        position
            Broadcastable to the shape of ``x`` without its last axis.
        """
        each = table(x, _frequencies, self, x.shape[-1], dtype=x.dtype)
        if not self.interleaved and 2 * each.shape[0] == x.shape[-1]:
            return rotate_at(x, position, each)
        at = backend_of(x).xp.astype(position, x.dtype)
        return self.rotate_by(x, *self.angles(at, x.shape[-1]))

    def angles(self, position: Array, head_dim: int) -> tuple[Array, Array]:
        """Return cosine and sine of the angles at a position, (..., pairs of features)."""
        xp, kind = backend_of(position).xp, position.dtype
        angle = position[..., None] * table(position, _frequencies, self, head_dim, dtype=kind)
        return xp.cos(angle), xp.sin(angle)

    def rotate_by(self, x: Array, cosine: Array, sine: Array) -> Array:
        """Rotate features by the result of `angles`."""
        xp, rotary = backend_of(x).xp, 2 * cosine.shape[-1]
        if self.interleaved:
            left, right = x[..., 0:rotary:2], x[..., 1:rotary:2]
            pairs = [left * cosine - right * sine, right * cosine + left * sine]
            rotated = xp.reshape(xp.stack(pairs, axis=-1), (*pairs[0].shape[:-1], rotary))
        else:
            rotated = rotate_halves(x[..., :rotary], cosine, sine)
        return rotated if rotary == x.shape[-1] else xp.concat([rotated, x[..., rotary:]], axis=-1)

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Rotate queries and keys by their positions."""
        if self.temperature != 1.0:
            query = query * self.temperature**2
        return Encoded((Term(query, key, self.rotate, places.query, places.key),), places)


def _frequencies(rope: RoPE, head_dim: int) -> list[float]:
    return rope.frequencies(head_dim)
