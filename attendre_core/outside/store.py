"""The entries of one stream outside of the device."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from attendre_core.errors import ShapeError, StateError
from attendre_core.files import replacing
from attendre_core.outside.index import Index, Searcher
from attendre_core.outside.settings import HostStores

__all__ = ["Found", "HostStore"]

_NAMES = ("key", "value", "position", "arrival", "score", "count")


class Found(NamedTuple):
    """What queries retrieve: (batch, queries, heads, K, ...); only valid ones are real."""

    key: NDArray[Any]
    value: NDArray[Any]
    position: NDArray[np.int32]
    valid: NDArray[np.bool_]
    slot: NDArray[np.int64]


class HostStore:
    """Entries in host memory or in memory-mapped files: the keys and values of one stream.

    It is changed in place, so one store belongs to one stream (and one layer).

    Parameters
    ----------
    capacity
        How many entries a row holds. Beyond it, as many entries as arrive are deleted.
    delete
        What goes first: ``"oldest"``, or ``"least-used"``: the entry that got the least attention.
    index
        How keys are found: `ExactIndex` or `FaissIndex`, or an index of your own.
    folder
        Keep the arrays in files of this folder, memory-mapped; None keeps them in host memory.
    dtype
        Of the stored keys and values; ``"float16"`` halves what they take.

    Notes
    -----
    Laws: a store holds at most its capacity; a deleted entry is handed back, is taken out of the
    index and is never found again; rows do not influence each other.

    Examples
    --------
    >>> import attendre_core as at
    >>> store = at.HostStore(capacity=1000)
    >>> memory = at.Tiers(at.KeyValueMemory(8), at.HostTier(store, top_k=4), read=at.Gate())
    >>> memory.outside.top_k
    4
    """

    def __init__(
        self,
        capacity: int,
        *,
        delete: Literal["oldest", "least-used"] = "oldest",
        index: Index | None = None,
        folder: str | Path | None = None,
        dtype: str = "float32",
    ) -> None:
        given: dict[str, Any] = {} if index is None else {"index": index}
        checked = HostStores(capacity, delete, folder=folder, dtype=dtype, **given)
        self.capacity, self.delete, self.dtype = capacity, delete, dtype
        self.index: Index = checked.index
        self.folder = None if folder is None else Path(folder)
        self._arrays: dict[str, Any] = {}
        self._searchers: list[list[Searcher]] = []
        self._clock: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._only_read = False

    # ---------------------------------------------------------------- what it holds

    @property
    def clock(self) -> NDArray[np.int64]:
        """How many entries of each row arrived, (batch,)."""
        return self._clock

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many entries each row holds."""
        return tuple(int((x >= 0).sum()) for x in self._arrays["arrival"]) if self._arrays else ()

    def positions(self, row: int = 0) -> list[int]:
        """Return the positions that a row holds, oldest entry first."""
        arrival = self._arrays["arrival"][row]
        held = (arrival >= 0).nonzero()[0]
        order = held[np.argsort(arrival[held])]
        return [int(p) for p in self._arrays["position"][row][order]]

    # ---------------------------------------------------------------- operations

    def open(self, batch: int, heads: int, head_dim: int, value_dim: int) -> None:
        """Make the arrays, empty, unless there are some already."""
        shapes = {
            "key": ((batch, heads, self.capacity, head_dim), self.dtype),
            "value": ((batch, heads, self.capacity, value_dim), self.dtype),
            "position": ((batch, self.capacity), "int32"),
            "arrival": ((batch, self.capacity), "int64"),
            "score": ((batch, self.capacity), "float32"),
            "count": ((batch, self.capacity), "int32"),
        }
        if self._arrays:
            given, held = shapes["key"][0], self._arrays["key"].shape
            if given != held:
                raise ShapeError(
                    f"HostStore: entries of (batch, heads, capacity, head_dim) {given} for a store "
                    f"of {held}. Use one store for each stream and layer."
                )
            return
        for name, (shape, kind) in shapes.items():
            self._arrays[name] = self._made(name, shape, kind)
        self._arrays["arrival"][...] = -1
        self._clock = np.zeros(batch, dtype=np.int64)
        self._searchers = [
            [self.index.make(self._arrays["key"][b, g]) for g in range(heads)] for b in range(batch)
        ]

    def _made(self, name: str, shape: tuple[int, ...], kind: str) -> Any:
        if self.folder is None:
            return np.zeros(shape, dtype=kind)
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{name}.npy"
        if path.exists():
            raise StateError(
                f"HostStore: {path} exists. Give every stream a folder of its own, or open a saved "
                "store with HostStore.load."
            )
        return np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(kind), shape=shape)

    def add(self, row: int, entries: dict[str, Any]) -> dict[str, Any]:
        """Add entries of a row; return those that are deleted for them, by field.

        Parameters
        ----------
        entries
            ``key`` and ``value``, (heads, n, dim), ``position`` and ``count``, (n,), oldest first.
        """
        total = entries["position"].shape[0]
        if self._only_read and total:
            raise StateError(
                "HostStore.add: generated entries do not go into the store of what was read. "
                "Generate fewer tokens than the writer has room for."
            )
        surplus = max(total - self.capacity, 0)  # more than fit: the first pass through at once
        passed = {name: _cut(name, x, slice(0, surplus)) for name, x in entries.items()}
        entries = {name: _cut(name, x, slice(surplus, None)) for name, x in entries.items()}
        count = total - surplus
        arrival = self._arrays["arrival"][row]
        free = (arrival < 0).nonzero()[0][:count]
        slots = np.concatenate([free, self._lowest(row, count - len(free))]).astype(np.int64)
        gone = slots[len(free) :]
        deleted = {
            name: np.array(self._arrays[name][row][(slice(None), gone) if name in _WIDE else gone])
            for name in entries
        }
        for g, searcher in enumerate(self._searchers[row]):
            if len(gone):
                searcher.remove(gone)
            self._arrays["key"][row, g, slots] = entries["key"][g]
            self._arrays["value"][row, g, slots] = entries["value"][g]
            if count:
                searcher.add(slots, np.asarray(entries["key"][g], dtype=np.float32))
        for name in ("position", "count"):
            self._arrays[name][row, slots] = entries[name]
        self._arrays["score"][row, slots] = 0.0
        first = self._clock[row] + surplus
        arrival[slots] = first + np.arange(count)
        self._clock[row] += total
        return {
            name: np.concatenate([passed[name], deleted[name]], axis=1 if name in _WIDE else 0)
            for name in entries
        }

    def _lowest(self, row: int, count: int) -> NDArray[np.int64]:
        """Return the slots of the entries to delete, oldest first."""
        if count <= 0:
            return np.zeros(0, dtype=np.int64)
        arrival = self._arrays["arrival"][row]
        held = (arrival >= 0).nonzero()[0]
        if self.delete == "oldest":
            chosen = held[np.argpartition(arrival[held], count - 1)[:count]]
        else:
            score = self._arrays["score"][row][held]
            chosen = held[np.lexsort((arrival[held], score))[:count]]
        return np.asarray(chosen[np.argsort(arrival[chosen])])

    def search(self, query: NDArray[Any], valid: NDArray[np.bool_], top_k: int) -> Found:
        """Retrieve the K best entries for queries (batch, queries, heads, head_dim)."""
        batch, queries, heads, _ = query.shape
        groups = self._arrays["key"].shape[1]
        slot = np.full((batch, queries, heads, top_k), -1, dtype=np.int64)
        query = np.asarray(query, dtype=np.float32)
        for b in range(batch):
            real = valid[b].nonzero()[0]
            for g in range(groups):
                own = slice(g * (heads // groups), (g + 1) * (heads // groups))
                asked = query[b, real, own].reshape(-1, query.shape[-1])
                if len(asked) and self._clock[b]:
                    found = self._searchers[b][g].search(asked, top_k)
                    slot[b, real, own] = found.reshape(len(real), -1, top_k)
        head = (np.arange(heads) // (heads // groups))[None, None, :, None]
        row = np.arange(batch)[:, None, None, None]
        some = np.maximum(slot, 0)
        key, value = (self._arrays[name][row, head, some] for name in ("key", "value"))
        return Found(key, value, self._arrays["position"][row, some], slot >= 0, slot)

    def observe(self, slot: NDArray[np.int64], weight: NDArray[Any]) -> None:
        """Add the attention that retrieved entries got to their scores."""
        for b in range(0 if self._only_read else slot.shape[0]):
            held = slot[b] >= 0
            np.add.at(self._arrays["score"][b], slot[b][held], weight[b][held])

    def clear(self, rows: NDArray[np.bool_]) -> None:
        """Delete all entries of some rows."""
        for b in rows.nonzero()[0] if self._arrays else ():
            held = (self._arrays["arrival"][b] >= 0).nonzero()[0].astype(np.int64)
            for searcher in self._searchers[b]:
                searcher.remove(held)
            self._arrays["arrival"][b] = -1
            self._clock[b] = 0

    # ---------------------------------------------------------------- copies and files

    def copy(self) -> HostStore:
        """Return a store with the same entries; neither disturbs the other from here on.

        The copy of a store in files makes a folder of its own, beside the store's.
        """
        folder = None if self.folder is None else self.folder.parent
        twin = HostStores(self.capacity, self.delete, self.index, folder, self.dtype).open()
        if self._arrays:
            batch, heads, _, dim = self._arrays["key"].shape
            twin.open(batch, heads, dim, self._arrays["value"].shape[3])
            for row in range(batch):
                twin.put(row, self.held(row), int(self._clock[row]))
        return twin

    def only_read(self) -> HostStore:
        """Return a store over the same entries that neither receives nor scores."""
        view = copy.copy(self)
        view._only_read = True
        return view

    def held(self, row: int) -> dict[str, NDArray[Any]]:
        """Return the entries of a row, by field, with the ``slot`` of each."""
        slot = (self._arrays["arrival"][row] >= 0).nonzero()[0].astype(np.int64)
        return {"slot": slot} | {
            name: self._arrays[name][row][(slice(None), slot) if name in _WIDE else slot]
            for name in _NAMES
        }

    def put(self, row: int, entries: dict[str, Any], clock: int) -> None:
        """Put what `held` returned into an empty row, into which ``clock`` entries had come."""
        heads, _, dim = self._arrays["key"].shape[1:]
        wide = {"key": dim, "value": self._arrays["value"].shape[3]}
        slot, arrival = entries["slot"], entries["arrival"]
        count = slot.shape[0] if slot.ndim == 1 else -1
        shapes = {n: (heads, count, wide[n]) if n in wide else (count,) for n in _NAMES}
        kinds = {"key": "f", "value": "f", "score": "f"}
        for name, shape in (shapes | {"slot": (count,)}).items():
            given = entries[name]
            if given.shape != shape or given.dtype.kind != kinds.get(name, "i"):
                told = f"{name} is {given.dtype} {given.shape}, expected {shape}"
                raise StateError(f"HostStore.put: {told}.")
            if not np.isfinite(given).all():
                raise StateError(f"HostStore.put: {name} holds a number that is not finite.")
        for given, stop in ((slot, self.capacity), (arrival, clock)):
            if ((given < 0) | (given >= stop)).any() or len(np.unique(given)) < count:
                raise StateError("HostStore.put: two entries are in one place, or one is outside.")
        small = (entries["position"] >= 0) & (entries["position"] < 2**31)
        if clock < 0 or not (small & (entries["count"] > 0)).all():
            raise StateError("HostStore.put: an entry has no position, or stands for nothing.")
        for name in _NAMES:
            own = self._arrays[name][row]
            own[(slice(None), slot) if name in _WIDE else slot] = entries[name]
        self._clock[row] = clock
        for g, searcher in enumerate(self._searchers[row] if count else ()):
            searcher.add(slot, np.asarray(entries["key"][g], dtype=np.float32))

    def save(self, path: str | Path) -> None:
        """Save what it holds, in one file, with nothing in it that could be executed."""
        if not self._arrays:
            raise StateError("HostStore.save: the store is empty. Read something first.")
        rows = range(len(self._clock))
        held: dict[str, Any] = {
            f"{row}.{name}": x for row in rows for name, x in self.held(row).items()
        }
        capacity = np.asarray(self.capacity, dtype=np.int64)
        try:
            with replacing(path) as file:
                np.savez(file, clock=self._clock, capacity=capacity, **held)
        except OSError as error:
            raise StateError(
                f"HostStore.save: {path} cannot be written ({error}). What was there before is "
                "unchanged."
            ) from error

    @classmethod
    def load(cls, path: str | Path, **settings: Any) -> HostStore:
        """Open what `save` wrote; settings as in the constructor, except ``capacity``."""
        try:
            with np.load(path, allow_pickle=False) as file:
                held = {name: file[name] for name in file.files}
            clock, capacity = held["clock"].tolist(), int(held["capacity"])
            store = cls(capacity, **{"dtype": str(held["0.key"].dtype), **settings})
            _, _, dim = held["0.key"].shape
            store.open(len(clock), len(held["0.key"]), dim, held["0.value"].shape[2])
            for row, count in enumerate(clock):
                store.put(row, {n: held[f"{row}.{n}"] for n in ("slot", *_NAMES)}, count)
        except _UNREADABLE as error:
            raise StateError(f"HostStore.load: {path} is not a saved store: {error}") from error
        return store


_WIDE = ("key", "value")
#: What a damaged file may raise.
_UNREADABLE = (KeyError, ValueError, EOFError, OSError, MemoryError, BadZipFile, StateError)


def _cut(name: str, x: NDArray[Any], part: slice) -> NDArray[Any]:
    return x[:, part] if name in _WIDE else x[part]
