"""Transformer-XL's relative positions (Dai et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.positions.base import Encoded, Encoding, Places, Term
from attendre_core.positions.rope import RoPE

__all__ = ["TransformerXLPositions"]


@dataclass(frozen=True)
class TransformerXLPositions(Encoding):
    """Add the product of query and projected sinusoid of the distance, and two learned biases.

    The logit of a query at i and a key at j is the scale times (q + u) . k + (q + v) . W r(i - j),
    where r(d) holds the sines of d at decreasing frequencies, then the cosines. The parameters are
    passed as ``encoding_params``, (width + 2, heads, head_dim): W by rows, then u, then v.

    Parameters
    ----------
    width
        Of r: the width of the model in the paper.
    base
        The slowest sinusoid takes about 2 pi * base positions.
    scale
        Multiplies u and v: the scale of the memory; None is 1/sqrt(head_dim).

    Notes
    -----
    Law: the logit depends only on the difference of the positions. The sine of a difference is a
    product of sines and cosines of its terms, so no table of distances is needed, and none of
    them is too large.

    Examples
    --------
    >>> TransformerXLPositions(width=8).shape(heads=2, head_dim=4)
    (10, 2, 4)
    """

    width: int
    base: float = 10000.0
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.width < 2 or self.width % 2 or not self.base > 0:
            raise ConfigError(
                f"TransformerXLPositions: width is {self.width} and base {self.base}, expected an "
                "even number, the width of the model, and a positive number like 10000."
            )

    def shape(self, heads: int, head_dim: int) -> tuple[int, int, int]:
        """Return the shape of the parameters."""
        return (self.width + 2, heads, head_dim)

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Add u to the queries, and what depends on the distance as a bias."""
        xp = backend_of(query).xp
        _, heads, group, _, dim = query.shape
        expected = self.shape(heads * group, dim)
        if params is None or tuple(params.shape) != expected:
            given = "missing" if params is None else f"of shape {tuple(params.shape)}"
            raise ShapeError(
                f"TransformerXLPositions: the parameters are {given}, expected (width + 2, heads, "
                f"head_dim) = {expected}. Pass them as encoding_params."
            )
        params = xp.reshape(xp.astype(params, query.dtype), (-1, heads, group, dim))
        biases = params[self.width :, ...] * (dim**-0.5 if self.scale is None else self.scale)
        projection = xp.permute_dims(params[: self.width, ...], (1, 2, 3, 0))
        asked = xp.matmul(query + biases[1, ..., None, :], projection)
        sine_part, cosine_part = asked[..., : self.width // 2], asked[..., self.width // 2 :]
        cosine, sine = self._angles(places.query, query.dtype)
        rotated = [
            cosine_part * sine - sine_part * cosine,
            sine_part * sine + cosine_part * cosine,
        ]
        cosine, sine = self._angles(places.key[:, :, None, :], query.dtype)
        keys = xp.matrix_transpose(xp.concat([sine, cosine], axis=-1))
        bias = xp.matmul(xp.concat(rotated, axis=-1), keys)
        return Encoded((Term(query + biases[0, ..., None, :], key),), places, bias=bias)

    def _angles(self, place: Array, kind: Any) -> tuple[Array, Array]:
        """Return cosines and sines, (..., width / 2)."""
        return RoPE(self.base).angles(backend_of(place).xp.astype(place, kind), self.width)
