"""Disentangled attention (DeBERTa, He et al., 2021): contents and distances meet each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array, backend_of, numbers, wide
from attendre_core.errors import ConfigError, ShapeError
from attendre_core.ops.lookup import take_rows
from attendre_core.ops.slots import gather_slots
from attendre_core.ops.tables import table
from attendre_core.positions.base import Encoded, Encoding, Places, Term

__all__ = ["DisentangledPositions"]


@dataclass(frozen=True)
class DisentangledPositions(Encoding):
    """Add query times the key of their distance, and key times the query of their distance.

    The parameters are passed as ``encoding_params``, (2 * span * len(terms), heads, head_dim): the
    keys of distances, then their queries.

    Parameters
    ----------
    reach
        Distances from this one on are treated alike.
    buckets
        Number of buckets in each direction, an even number: distances up to half of it have one
        each, farther ones share buckets that grow logarithmically. None: each distance has one.
    terms
        ``"c2p"``: a query times the key of the distance; ``"p2c"``: a key times the query of the
        distance. Either or both, in this order.
    scale
        The scale of the memory, by which keys are multiplied, too; None is 1/sqrt(head_dim).

    Attributes
    ----------
    span
        Half of the rows of the parameters: ``buckets``, or ``reach`` without any.

    Notes
    -----
    Law: the logit depends only on query, key and the difference of their positions.

    Examples
    --------
    >>> scheme = DisentangledPositions(reach=16, buckets=8)
    >>> [scheme.row(distance) for distance in (-99, -5, -1, 0, 1, 5, 99)]
    [0, 3, 7, 8, 9, 13, 15]
    """

    reach: int
    buckets: int | None = None
    terms: tuple[str, ...] = ("c2p", "p2c")
    scale: float | None = None

    def __post_init__(self) -> None:
        even = self.buckets is None or self.buckets in range(4, 2 * self.reach - 2, 2)
        if self.reach < 1 or not even or self.terms not in (("c2p",), ("p2c",), ("c2p", "p2c")):
            raise ConfigError(
                f"{self}: expected a reach, no buckets or an even number from 4 to less than twice "
                "the reach, and c2p, p2c or both, in this order. DeBERTa has 512 and 256."
            )

    @property
    def span(self) -> int:
        """Half of the rows of the parameters."""
        return self.reach if self.buckets is None else self.buckets

    def shape(self, heads: int, head_dim: int) -> tuple[int, int, int]:
        """Return the shape of the parameters."""
        return (2 * self.span * len(self.terms), heads, head_dim)

    def row(self, distance: int) -> int:
        """Return the row of the parameters for a query so many positions after its key."""
        bucket, half = abs(distance), self.span // 2
        if self.buckets is not None and bucket > half:
            grown = math.log(bucket / half) / math.log((self.reach - 1) / half) * (half - 1)
            # It is evaluated in float32; 1e-6 puts a distance on a boundary into the same bucket.
            bucket = half + math.ceil(grown - 1e-6)
        return min(max(self.span + (bucket if distance > 0 else -bucket), 0), 2 * self.span - 1)

    def encode(self, query: Array, key: Array, places: Places, params: Any = None) -> Encoded:
        """Compute the products for every row of the parameters, and pick those of each pair."""
        xp = backend_of(query).xp
        _, heads, group, _, dim = query.shape
        expected = self.shape(heads * group, dim)
        if params is None or tuple(params.shape) != expected:
            raise ShapeError(
                f"DisentangledPositions: encoding_params are {getattr(params, 'shape', None)}, "
                f"expected (2 * span * len(terms), heads, head_dim) = {expected}."
            )
        params = xp.reshape(xp.astype(params, query.dtype), (-1, 2 * self.span, heads, group, dim))
        params = xp.permute_dims(params, (0, 2, 3, 4, 1))
        row = places.query[..., None] - places.key[:, :, None, None, :]
        far = xp.full_like(row, self.reach)
        row = xp.minimum(xp.maximum(row, -far), far) + self.reach
        # The library's dtype for indices.
        row = take_rows(table(query, _rows, self, dtype=xp.argsort(numbers(1, row)).dtype), row)
        bias = 0.0
        if "c2p" in self.terms:
            bias = gather_slots(xp.matmul(query, params[0, ...]), row, axis=4)
        if "p2c" in self.terms:
            scaled = wide(key)[:, :, None, :, :] * (self.scale or dim**-0.5)
            asked = xp.matmul(scaled, params[-1, ...])
            bias = bias + xp.matrix_transpose(gather_slots(asked, xp.matrix_transpose(row), axis=4))
        return Encoded((Term(query, key),), places, bias=bias)


def _rows(scheme: DisentangledPositions) -> list[int]:
    """Return the row of each distance from -reach to reach."""
    return [scheme.row(distance) for distance in range(-scheme.reach, scheme.reach + 1)]
