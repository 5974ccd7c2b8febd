"""Indices: find the keys with the largest products with a query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ConfigError

__all__ = ["ExactIndex", "FaissIndex", "Index", "Searcher"]

Floats = NDArray[np.float32]
Numbers = NDArray[np.int64]

#: How many keys are compared at once.
_BLOCK = 16384


class Searcher(Protocol):
    """The keys of one row and one head, by slot."""

    def add(self, slots: Numbers, keys: Floats) -> None:
        """Add keys, (n, dim), under their slots, (n,), which are free."""

    def remove(self, slots: Numbers) -> None:
        """Remove the keys of these slots, for good."""

    def search(self, queries: Floats, count: int) -> Numbers:
        """Return the slots of the best keys, (queries, count), best first; -1 for none."""


class Index(Protocol):
    """Makes a `Searcher` for each row and head."""

    def make(self, keys: Floats) -> Searcher:
        """Return an empty searcher; ``keys``, (capacity, dim), will hold the key of each slot."""


@dataclass(frozen=True)
class ExactIndex:
    """Compare every query with every key.

    Examples
    --------
    >>> ExactIndex() == ExactIndex()
    True
    """

    def make(self, keys: Floats) -> Searcher:
        """Return an empty searcher over an array of keys."""
        return _Exact(keys)


class _Exact:
    def __init__(self, keys: Floats) -> None:
        self._keys = keys
        self._held = np.zeros(len(keys), dtype=bool)

    def add(self, slots: Numbers, keys: Floats) -> None:
        self._held[slots] = True

    def remove(self, slots: Numbers) -> None:
        self._held[slots] = False

    def search(self, queries: Floats, count: int) -> Numbers:
        end = int(self._held.nonzero()[0].max(initial=-1)) + 1
        best: Any = np.full((len(queries), count), -np.inf, dtype=np.float32)
        slots: Any = np.full((len(queries), count), -1, dtype=np.int64)
        for start in range(0, end, _BLOCK):
            stop = min(start + _BLOCK, end)
            block = queries @ np.asarray(self._keys[start:stop], dtype=np.float32).T
            block[:, ~self._held[start:stop]] = -np.inf
            # Few of the later keys are better than the worst of the best so far.
            row, column = (block > best.min(axis=1, keepdims=True)).nonzero()
            if not len(row):
                continue
            number = np.arange(len(row)) - np.searchsorted(row, row)
            more: Any = np.full((len(queries), int(number.max()) + 1), -np.inf, dtype=np.float32)
            where = np.full(more.shape, -1, dtype=np.int64)
            more[row, number], where[row, number] = block[row, column], column + start
            best, slots = np.concatenate([best, more], 1), np.concatenate([slots, where], 1)
            top = np.argpartition(-best, count - 1, axis=1)[:, :count]
            best, slots = (np.take_along_axis(x, top, axis=1) for x in (best, slots))
        # Of equal products the earlier slot comes first.
        order = np.lexsort((slots, -best), axis=1)
        best, slots = (np.take_along_axis(x, order, axis=1) for x in (best, slots))
        return np.where(best > -np.inf, slots, -1)


@dataclass(frozen=True)
class FaissIndex:
    """Search a few of many lists of keys, by faiss: for millions of entries.

    It needs the extra ``knn``: ``pip install 'attendre-core[knn]'``.

    Parameters
    ----------
    lists
        Into how many lists the keys are divided.
    probes
        How many lists are searched; more find more of the true nearest, and take longer.
    train_at
        The lists are learned from the first so many keys; until then search is exact.

    Examples
    --------
    >>> FaissIndex(lists=64).probes
    16
    """

    lists: int = 1024
    probes: int = 16
    train_at: int = 40_000

    def __post_init__(self) -> None:
        if not 1 <= self.probes <= self.lists <= self.train_at:
            raise ConfigError(
                f"FaissIndex: probes is {self.probes}, lists {self.lists} and train_at "
                f"{self.train_at}, expected 1 <= probes <= lists <= train_at."
            )

    def make(self, keys: Floats) -> Searcher:
        """Return an empty searcher over an array of keys."""
        try:
            import faiss
        except ImportError as error:
            raise ConfigError(
                "FaissIndex: faiss is not installed. Install it with pip install "
                "'attendre-core[knn]', or use ExactIndex()."
            ) from error
        return _Faiss(self, keys, faiss)


class _Faiss:
    def __init__(self, settings: FaissIndex, keys: Floats, faiss: Any) -> None:
        self._settings, self._keys, self._faiss = settings, keys, faiss
        self._exact: _Exact | None = _Exact(keys)
        self._count = 0
        self._index: Any = None

    def add(self, slots: Numbers, keys: Floats) -> None:
        self._count += len(slots)
        if self._exact is None:
            self._index.add_with_ids(np.ascontiguousarray(keys), slots)
            return
        self._exact.add(slots, keys)
        if self._count >= self._settings.train_at:
            self._train()

    def remove(self, slots: Numbers) -> None:
        self._count -= len(slots)
        if self._exact is None:
            self._index.remove_ids(self._faiss.IDSelectorArray(slots))
        else:
            self._exact.remove(slots)

    def search(self, queries: Floats, count: int) -> Numbers:
        if self._exact is not None:
            return self._exact.search(queries, count)
        found: Numbers = self._index.search(np.ascontiguousarray(queries), count)[1]
        return found

    def _train(self) -> None:
        """Learn the lists from what is held, and move it into them."""
        faiss, lists, dim = self._faiss, self._settings.lists, self._keys.shape[1]
        if self._exact is None:
            return
        slots = self._exact._held.nonzero()[0].astype(np.int64)
        keys = np.ascontiguousarray(self._keys[slots], dtype=np.float32)
        self._near = faiss.IndexFlatIP(dim)  # faiss does not own it
        index = faiss.IndexIVFFlat(self._near, dim, lists, faiss.METRIC_INNER_PRODUCT)
        index.train(keys)
        index.set_direct_map_type(faiss.DirectMap.Hashtable)  # to delete without a search
        index.nprobe = self._settings.probes
        index.add_with_ids(keys, slots)
        self._index, self._exact = index, None
