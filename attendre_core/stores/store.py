"""Read-only entries with search keys of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from attendre_core.array_files import map_arrays, write_arrays
from attendre_core.backend import Array, Backend, Namespace, backend_of, resolve
from attendre_core.errors import ConfigError, ShapeError, StateError
from attendre_core.joint.beside import Beside

__all__ = ["Found", "Store"]

#: Chunks whose search keys are multiplied at a time.
_ROWS = 2**15
_OWN = ("search", "key", "value", "valid")


class Found(NamedTuple):
    """What a search found, best first.

    Attributes
    ----------
    index
        int64, (..., top_k), in NumPy: numbers of chunks; of equals the lower one comes first.
    similarity
        float32, (..., top_k), in NumPy: products of the query with the search keys.
    """

    index: Any
    similarity: Any


class Store:
    """Keys and values that are searched and attended to, and never evicted.

    They are kept in chunks, each with one search key, which need not be a key of attention. The
    arrays are NumPy's, usually mapped from a file; what is taken from them goes to the library
    that the store was opened for. `build` makes one, `open` maps one.

    Attributes
    ----------
    chunks, by
        Number of chunks, and entries of a chunk.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> entries = np.eye(6, dtype=np.float32)[:, None, :]
    >>> store = at.Store.build(search=np.eye(6), key=entries, value=entries, by=2)
    >>> store.chunks, store.search(np.eye(6)[[4]], top_k=1).index.tolist()
    (3, [[2]])
    >>> store.beside(np.eye(6)[[4]], top_k=1).key.shape
    (1, 2, 1, 6)
    """

    def __init__(
        self,
        arrays: dict[str, Any],
        xp: Namespace | str | Backend = "numpy",
        device: Any = None,
        *,
        where: str = "Store",
    ) -> None:
        self._arrays = arrays
        _check(where, arrays)
        self.chunks, self.by = (int(n) for n in arrays["key"].shape[:2])
        self._backend, self._device = resolve(xp), device

    def __repr__(self) -> str:
        return f"Store(chunks={self.chunks}, by={self.by}, key={self._arrays['key'].shape[2:]})"

    # ---------------------------------------------------------------- making and keeping

    @classmethod
    def build(
        cls,
        search: Any,
        key: Any,
        value: Any,
        *,
        aux: dict[str, Any] | None = None,
        by: int = 1,
        xp: Namespace | str | Backend = "numpy",
        device: Any = None,
    ) -> Self:
        """Make a store from entries.

        Parameters
        ----------
        search
            (chunks, search_dim): one search key for each chunk; or (entries, search_dim), of
            which each chunk has the mean.
        key, value
            (entries, kv_heads, dim), of any library.
        aux
            Metadata by name, (entries, ...).
        by
            Entries of a chunk; the last one may have fewer.
        """
        where = "Store.build"
        if by < 1:
            raise ConfigError(f"{where}: by is {by}, expected at least one entry in a chunk.")
        key, value, search = (_host(array) for array in (key, value, search))
        count = len(key) if key.ndim else 0
        chunks = -(-count // by)
        others = {f"aux.{name}": _host(array) for name, array in (aux or {}).items()}
        for name, array in {"value": value, **others}.items():
            if array.ndim == 0 or len(array) != count:
                raise ShapeError(f"{where}: {name} has {array.shape[:1]} entries, key {count}.")

        def cut(array: Any) -> Any:
            padded = np.zeros((chunks * by, *array.shape[1:]), dtype=array.dtype)
            padded[:count] = array
            return padded.reshape(chunks, by, *array.shape[1:])

        if search.ndim == 2 and len(search) == count and by > 1:
            sums = cut(search.astype(np.float64)).sum(axis=1)
            sizes = np.minimum(by, count - by * np.arange(chunks))[:, None]
            search = (sums / sizes).astype(np.float32)
        arrays = {
            "search": search.astype(np.float32, copy=False), "key": cut(key), "value": cut(value),
            "valid": cut(np.ones(count, dtype=bool)),
            **{name: cut(array) for name, array in others.items()},
        }  # fmt: skip
        return cls(arrays, xp, device, where=where)

    def save(self, path: str | Path) -> None:
        """Write the store to a file, which `open` maps; safetensors can read it too."""
        write_arrays("Store.save", path, self._arrays, {"by": self.by})

    @classmethod
    def open(
        cls,
        path: str | Path,
        xp: Namespace | str | Backend = "numpy",
        device: Any = None,
        *,
        verify: bool = True,
    ) -> Self:
        """Map a file that `save` wrote; nothing but its header is kept in memory.

        Parameters
        ----------
        xp, device
            Where what is taken from the store goes.
        verify
            Read the file once and compare its checksums. Sizes, shapes and dtypes are always
            checked, before anything is made of them.
        """
        arrays, notes = map_arrays("Store.open", path, verify=verify)
        try:
            store = cls(arrays, xp, device, where=f"Store.open: {path}")
        except (ShapeError, ConfigError) as error:
            raise StateError(f"{error} It is damaged, or belongs to another version.") from error
        if notes.get("by") != store.by:
            raise StateError(
                f"Store.open: {path} notes chunks of {str(notes.get('by'))[:20]} entries and holds "
                f"chunks of {store.by}. It is damaged."
            )
        return store

    # ---------------------------------------------------------------- reading

    def search(self, query: Array, top_k: int) -> Found:
        """Find the chunks whose search keys have the largest products with queries, exactly.

        Parameters
        ----------
        query
            (..., search_dim), of any library; values are read.
        top_k
            How many chunks, at most as many as there are.
        """
        rows = np.asarray(backend_of(query).to_numpy(query), dtype=np.float32)
        keys = self._arrays["search"]
        if rows.ndim == 0 or rows.shape[-1] != keys.shape[1]:
            raise ShapeError(
                f"Store.search: the query has shape {rows.shape}, expected (..., {keys.shape[1]})."
            )
        if not 1 <= top_k <= self.chunks:
            raise ConfigError(
                f"Store.search: top_k is {top_k}, expected 1 to {self.chunks} chunks."
            )
        flat = rows.reshape(-1, rows.shape[-1])
        best: Any = np.zeros((len(flat), 0), dtype=np.float32)
        index: Any = np.zeros((len(flat), 0), dtype=np.int64)
        for first in range(0, self.chunks, _ROWS):
            some = np.asarray(keys[first : first + _ROWS], dtype=np.float32)
            best = np.concatenate([best, flat @ some.T], axis=1)
            here = np.arange(first, first + len(some), dtype=np.int64)
            index = np.concatenate([index, np.broadcast_to(here, (len(flat), len(some)))], axis=1)
            order = np.argsort(-best, axis=1, kind="stable")[:, :top_k]  # earlier ones come first
            best, index = (np.take_along_axis(a, order, axis=1) for a in (best, index))
        shape = (*rows.shape[:-1], top_k)
        return Found(index.reshape(shape), best.reshape(shape))

    def take(self, index: Any) -> dict[str, Array]:
        """Return chunks by number, (...): key and value (..., by, kv_heads, dim), valid, aux."""
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < self.chunks):
            raise ConfigError(f"Store.take: a chunk is not between 0 and {self.chunks - 1}.")
        names = [name for name in self._arrays if name != "search"]
        return {name: self._there(self._arrays[name][index]) for name in names}

    def beside(self, query: Array, top_k: int) -> Beside:
        """Return the best chunks of each row, to be attended to beside a memory.

        Parameters
        ----------
        query
            (batch, search_dim); or (batch, any, search_dim): the best of each, joined.
        """
        index = self.search(query, top_k).index
        index = index.reshape(len(index), -1)
        rows = {}
        for name in ("key", "value", "valid"):
            found = self._arrays[name][index]
            rows[name] = self._there(found.reshape(len(index), -1, *found.shape[3:]))
        return Beside(rows["key"], rows["value"], rows["valid"])

    def _there(self, array: Any) -> Array:
        return self._backend.from_numpy(np.ascontiguousarray(array), device=self._device)


def _host(array: Any) -> Any:
    return array if isinstance(array, np.ndarray) else np.asarray(backend_of(array).to_numpy(array))


def _check(where: str, arrays: dict[str, Any]) -> None:
    """Refuse arrays that do not belong together."""
    missing = [name for name in _OWN if name not in arrays]
    if missing:
        raise ConfigError(f"{where} holds no {missing[0]}.")
    key, value, search = arrays["key"], arrays["value"], arrays["search"]
    if key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3] or not key.size:
        raise ShapeError(
            f"{where}: key and value are {key.shape} and {value.shape}, expected (chunks, by, "
            "kv_heads, dim) twice, with at least one entry."
        )
    if search.ndim != 2 or len(search) != len(key) or not search.shape[1]:
        raise ShapeError(
            f"{where}: search is {search.shape}, expected ({len(key)}, search_dim): a search key "
            "for each chunk, or for each entry."
        )
    for name, array in arrays.items():
        if name not in ("search", "key", "value"):
            if not (name == "valid" or name.startswith("aux.")):
                raise ConfigError(f"{where} holds {name[:40]!r}, which is no part of a store.")
            if array.shape[:2] != key.shape[:2]:
                raise ShapeError(f"{where}: {name[:40]} is {array.shape}, for keys of {key.shape}.")
    floats = all(arrays[name].dtype.kind == "f" for name in ("search", "key", "value"))
    valid = arrays["valid"]
    if not floats or valid.dtype != bool or valid.ndim != 2 or valid.view(np.uint8).max() > 1:
        raise ShapeError(f"{where}: search, key and value hold floats, valid holds flags.")
