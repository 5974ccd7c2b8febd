"""Pool hidden states as they come out of a stream, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attendre_core.backend import Array, backend_of, wide
from attendre_core.errors import ConfigError
from attendre_core.zoo.blocks import compiled
from attendre_core.zoo.reader import Hidden

if TYPE_CHECKING:
    from attendre_core.zoo.model import Model

__all__ = ["POOLINGS", "Recipe", "SpanPool", "normalized", "pooling_named"]

#: What `Model.embed` can make of the hidden states of a text.
POOLINGS = ("mean", "cls", "max", "last")


@dataclass(frozen=True)
class Recipe:
    """How a checkpoint says that its embeddings are made, in the files of sentence-transformers.

    Attributes
    ----------
    pooling
        One of `POOLINGS`; empty if it asks for something else.
    normalize
        Whether embeddings have length one.
    refused
        What else it asks for, if anything.
    """

    pooling: str = "mean"
    normalize: bool = False
    refused: str = ""


def pooling_named(where: str, pooling: str) -> str:
    """Return the name of a pooling, or raise."""
    if pooling not in POOLINGS:
        raise ConfigError(
            f"{where}: pooling is {pooling!r}, expected one of {', '.join(POOLINGS)}."
        )
    return pooling


class SpanPool:
    """One vector for each span of each row, from hidden states that come in any pieces.

    Sums and maxima are kept in float32, or float64 for a model in float64; nothing else is kept.

    Parameters
    ----------
    model
        Whose hidden states these are.
    pooling
        ``"mean"``, ``"max"``, ``"cls"`` (the first position of a span) or ``"last"``.
    spans
        For each row, positions ``(start, end)``, ``end`` exclusive, none of them empty. A row may
        have fewer than another.

    Examples
    --------
    >>> import numpy as np
    >>> from attendre_core.evaluation import load_tiny
    >>> pool = SpanPool(load_tiny("prefix-lm"), "mean", [[(0, 2), (1, 3)]])
    >>> x = np.asarray([[[1.0], [2.0], [4.0], [9.0]]], dtype=np.float32)
    >>> pool.add(Hidden(x, np.asarray([[0, 1, 2, 3]]), np.asarray([[True] * 4])))
    >>> pool.result().tolist()
    [[[1.5], [3.0]]]
    """

    def __init__(
        self, model: Model, pooling: str, spans: Sequence[Sequence[tuple[int, int]]]
    ) -> None:
        self._model = model
        self._add = _adding_program(model.library, pooling == "max")
        self._first = np.zeros((len(spans), max(map(len, spans), default=0)), dtype=np.int32)
        self._stop = np.zeros_like(self._first)
        for number, row in enumerate(spans):
            for place, (first, stop) in enumerate(row):
                self._first[number, place] = stop - 1 if pooling == "last" else first
                self._stop[number, place] = first + 1 if pooling == "cls" else stop
        self._divide = pooling == "mean"
        self._pooled: list[Array | None] = [None] * self._first.shape[1]

    def add(self, hidden: Hidden) -> None:
        """Pool what came out; only the spans that it lies in take time."""
        to_numpy = self._model.backend.to_numpy
        place, real = np.asarray(to_numpy(hidden.position)), np.asarray(to_numpy(hidden.valid))
        low = np.where(real, place, np.iinfo(np.int32).max).min(axis=1, initial=2**31 - 1)[:, None]
        high = np.where(real, place, -1).max(axis=1, initial=-1)[:, None]
        touched = ((self._first <= high) & (self._stop > low)).any(axis=0)
        for number in np.flatnonzero(touched).tolist():
            ends = (self._first[:, number], self._stop[:, number])
            first, stop = (self._model.array(np.ascontiguousarray(end)) for end in ends)
            self._pooled[number] = self._add(self._pooled[number], *hidden, first, stop)

    def result(self) -> Array:
        """Return the vectors, (rows, spans, dim); those that a row has fewer are zeros or infinite.

        Call it when all positions of all spans have been added.
        """
        xp = self._model.backend.xp
        pooled = xp.stack([array for array in self._pooled if array is not None], axis=1)
        if not self._divide:
            return pooled
        count = np.maximum(self._stop - self._first, 1)[:, :, None]
        return pooled / xp.astype(self._model.array(count), pooled.dtype)


@lru_cache(maxsize=32)
def _adding_program(library: str, largest: bool) -> Callable[..., Array]:
    """Return ``add(pooled, x, position, valid, first, stop)`` for one span of each row."""

    def add(
        pooled: Array | None, x: Array, position: Array, valid: Array, first: Array, stop: Array
    ) -> Array:
        xp = backend_of(x).xp
        x = wide(x)
        inside = (valid & (position >= first[:, None]) & (position < stop[:, None]))[:, :, None]
        if largest:
            new = xp.max(xp.where(inside, x, xp.full_like(x, -xp.inf)), axis=1)
            return new if pooled is None else xp.maximum(pooled, new)
        new = xp.sum(xp.where(inside, x, xp.zeros_like(x)), axis=1)
        return new if pooled is None else pooled + new

    return compiled(library, add)


def normalized(vectors: Any) -> Array:
    """Bring vectors, (..., dim), to length one.

    Examples
    --------
    >>> import numpy as np
    >>> normalized(np.asarray([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    xp = backend_of(vectors).xp
    length = xp.sqrt(xp.sum(vectors * vectors, axis=-1, keepdims=True))
    return vectors / xp.where(length > 0, length, xp.ones_like(length))
