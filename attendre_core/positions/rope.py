"""Rotary positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of, kernel
from attendre_core.errors import ConfigError
from attendre_core.positions.base import Encoded, Encoding, Pairing
from attendre_core.positions.scaling import Scaling

__all__ = ["RoPE", "rotated"]


@dataclass(frozen=True)
class RoPE(Encoding):
    """Rotate pairs of features by an angle proportional to the position.

    Parameters
    ----------
    base
        The slowest rotation takes about 2 pi times base positions.
    scaling
        `Interpolation`, `NTK` or `YaRN` for inputs longer than trained; None for none.
    rotary_dim
        Rotate only the first so many features; None = all.
    interleaved
        False pairs feature i with i + dim/2, as most public checkpoints do; True pairs 2i with
        2i + 1.

    Notes
    -----
    Law: the logit depends on the difference of the positions alone. Positions are counted from
    the last query, so that a pair is as exact after millions of positions as at the start,
    unless the two are millions apart.

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
        """Multiplies queries and keys: 1 without a scaling that sharpens attention."""
        return 1.0 if self.scaling is None else self.scaling.temperature

    def frequencies(self, head_dim: int) -> list[float]:
        """Return the angle a position adds, for each pair of features."""
        dim = head_dim if self.rotary_dim is None else self.rotary_dim
        if dim % 2 or dim > head_dim:
            raise ConfigError(
                f"RoPE: {dim} of {head_dim} features cannot be rotated in pairs. Use an even "
                "head_dim, or an even rotary_dim that is not larger."
            )
        plain = [self.base ** (-2 * i / dim) for i in range(dim // 2)]
        return plain if self.scaling is None else self.scaling.frequencies(plain, self.base, dim)

    def rotate(self, x: Array, position: Array) -> Array:
        """Rotate features by position.

        Parameters
        ----------
        x
            (..., head_dim).
        position
            Numbers that broadcast to ``x`` without its last axis.
        """
        xp = backend_of(x).xp
        return self.turned(x, *self.angles(xp.astype(position, x.dtype), x.shape[-1]))

    def angles(self, position: Array, head_dim: int) -> tuple[Array, Array]:
        """Return cosine and sine of the angles of a position, (..., pairs of features)."""
        found = backend_of(position)
        xp, device = found.xp, found.device_of(position)
        each = xp.asarray(self.frequencies(head_dim), dtype=position.dtype, device=device)
        angle = position[..., None] * each
        return xp.cos(angle), xp.sin(angle)

    def turned(self, x: Array, cosine: Array, sine: Array) -> Array:
        """Rotate features by what `angles` returned."""
        return rotated(x, cosine, sine, interleaved=self.interleaved)

    def encode(self, query: Array, key: Array, pairing: Pairing, params: Any = None) -> Encoded:
        """Rotate queries and keys by their positions."""
        if self.temperature != 1.0:
            query = query * self.temperature**2
        pairing = pairing.centred()
        return Encoded(self.rotate(query, pairing.query_place), self.rotate(key, pairing.key_place))


def rotated(x: Array, cosine: Array, sine: Array, *, interleaved: bool) -> Array:
    """Rotate the first 2n features of ``x`` in pairs; cosine and sine are (..., n)."""
    half = cosine.shape[-1]
    fast = None if interleaved or 2 * half < x.shape[-1] else kernel("rotated_halves", x)
    if fast is not None:
        return fast(x, cosine, sine)
    xp = backend_of(x).xp
    if interleaved:
        left, right = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        left, right = x[..., :half], x[..., half : 2 * half]
    one, two = left * cosine - right * sine, right * cosine + left * sine
    if interleaved:
        pairs = xp.stack([one, two], axis=-1)
        turned = [xp.reshape(pairs, (*one.shape[:-1], 2 * half))]
    else:
        turned = [one, two]
    if 2 * half < x.shape[-1]:
        turned.append(x[..., 2 * half :])
    return turned[0] if len(turned) == 1 else xp.concat(turned, axis=-1)
