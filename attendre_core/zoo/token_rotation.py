"""Rotate the queries and keys of one token at a time, with angles that many layers share."""

from __future__ import annotations

from typing import Any

import numpy as np

from attendre_core.backend import Array, backend_of, beside
from attendre_core.positions.base import Encoding, Term
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.rope import RoPE

__all__ = ["TokenRotation", "cast_to"]


class TokenRotation:
    """Rotates and scales the queries and keys of one token, for all layers with one encoding.

    Queries and keys are rotated in one call. The cosines and sines of query heads include the
    scale.

    Parameters
    ----------
    encoding
        `RoPE`, `LMInfinite`, or one without positions.
    terms
        Terms of the encoding for a query at the origin. The first rotates queries and keys by
        their places; the others rotate only keys, all by the same angle.
    heads, scale
        Number of query heads, and factor of the logits; None = 1/sqrt(head_dim).
    place
        int32, (batch, 1): the place of the first token, counted from the origin.
    """

    def __init__(
        self,
        encoding: Encoding,
        terms: tuple[Term, ...],
        heads: int,
        scale: float | None,
        place: Array,
    ) -> None:
        found = backend_of(place)
        self._xp = xp = found.xp
        _, kv_heads, _, dim = terms[0].key.shape
        self._heads, self._kv_heads, self._dim = heads, kv_heads, dim
        self._dtype, self._rope = terms[0].key.dtype, _rope_of(encoding)
        self._scale = dim**-0.5 if scale is None else scale
        if self._rope is None:
            return
        self._scale = self._scale * self._rope.temperature**2
        scales = np.repeat([self._scale, 1.0], [heads, kv_heads])[:, None]
        self._scales = xp.astype(beside(scales, place), self._dtype)
        #: Cosine and sine of the constant angle of each further term.
        self._fixed = [
            [xp.broadcast_to(a, (*a.shape[:2], kv_heads, a.shape[3])) for a in self._angles(at)]
            for at in (term.key_at[:1, 0, :1] for term in terms[1:])  # type: ignore[index]
        ]
        self.move(place)

    def _angles(self, place: Array) -> list[Array]:
        """Return cosine and sine, (batch, 1, 1, pairs of features)."""
        each = self._rope.angles(cast_to(place, self._dtype), self._dim)  # type: ignore[union-attr]
        return [angle[:, :, None, :] for angle in each]

    def move(self, place: Array) -> None:
        """Compute the angles for the place of another token, (batch, 1)."""
        if self._rope is None:
            return
        angles = [angle * self._scales for angle in self._angles(place)]
        for fixed in self._fixed:
            rows = (place.shape[0], *fixed[0].shape[1:])
            angles = [
                self._xp.concat([angle, self._xp.broadcast_to(more, rows)], axis=2)
                for angle, more in zip(angles, fixed, strict=True)
            ]
        self._cosine, self._sine = angles

    def of(self, query: Array, key: Array) -> tuple[list[Array], list[Array]]:
        """Return the queries, scaled, and the keys of each term."""
        heads, kv_heads = self._heads, self._kv_heads
        query, key = cast_to(query, self._dtype), cast_to(key, self._dtype)
        if self._rope is None:
            return [query * self._scale], [key]
        parts = [query, key, *(key for _ in self._fixed)]
        rotated = self._rope.rotate_by(self._xp.concat(parts, axis=2), self._cosine, self._sine)
        keys = [
            rotated[:, :, start : start + kv_heads, :]
            for start in range(heads, rotated.shape[2], kv_heads)
        ]
        return [rotated[:, :, :heads, :], *(query * self._scale for _ in self._fixed)], keys


def cast_to(x: Array, dtype: Any) -> Array:
    """Return an array with a dtype, without a copy if it has that dtype."""
    return x if x.dtype == dtype else backend_of(x).xp.astype(x, dtype)


def _rope_of(encoding: Encoding) -> RoPE | None:
    """Return the rotation of an encoding; None if it has none."""
    if isinstance(encoding, LMInfinite):
        return RoPE(base=encoding.base) if encoding.rope is None else encoding.rope
    return encoding if isinstance(encoding, RoPE) else None
