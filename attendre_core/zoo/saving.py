"""Nested arrays in a safetensors file under their own names, and back into the same nesting.

A file holds one tensor for each array (``states.0.kv.key``), and in its metadata a JSON text with
notes and a checksum. Nothing in it is trusted before it was compared with what a fresh stream of
the same model looks like.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.array_files import write_safetensors
from attendre_core.backend import Backend, backend_of, beside
from attendre_core.checks import FIRST_POSITION
from attendre_core.errors import ConfigError, StateError
from attendre_core.files import replacing
from attendre_core.memory.queue import DataOnlyState
from attendre_core.ops.slots import gather_slots
from attendre_core.tree import tree_leaves, tree_map

__all__ = [
    "SavedArrays",
    "fingerprint",
    "named_leaves",
    "read_arrays",
    "sorted_queues",
    "write_arrays",
]

#: The checksum of the first format covers the arrays alone.
_FORMATS = "attendre-stream-"
_FIRST_FORMAT, _FORMAT = f"{_FORMATS}1", f"{_FORMATS}2"
#: How many parameters, and how many numbers of each, tell one model from another.
_SAMPLES, _SAMPLE = 8, 64


def named_leaves(tree: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield arrays with their paths, in the order of `tree_leaves`.

    Examples
    --------
    >>> dict(named_leaves({"a": [1, {"b": 2}], "c": None}))
    {'a.0': 1, 'a.1.b': 2}
    """
    if tree is None:
        return
    if isinstance(tree, dict):
        parts = list(tree.items())
    elif isinstance(tree, (tuple, list)):
        keys = getattr(tree, "_fields", range(len(tree)))
        parts = list(zip(keys, tree, strict=True))
    else:
        yield name, tree
        return
    for key, part in parts:
        yield from named_leaves(part, f"{name}.{key}" if name else str(key))


class SavedArrays:
    """The arrays of a file by name, and its notes."""

    def __init__(self, path: str | Path, arrays: dict[str, Any], notes: dict[str, Any]) -> None:
        self.path, self.arrays, self.notes = path, arrays, notes

    def shape(self, name: str, expected: tuple[int | None, ...]) -> tuple[int, ...]:
        """Return the shape of an array; it must be as expected, None for any length."""
        given: tuple[int, ...] = getattr(self.arrays.get(name), "shape", ())
        if len(given) != len(expected) or any(
            e not in (None, g) for g, e in zip(given, expected, strict=True)
        ):
            raise self.refused(f"holds {name} with shape {given}, expected {expected}")
        return given

    def whole_numbers(self, name: str, count: int, least: int) -> Any:
        """Return a note: a list of ``count`` int32 numbers of at least ``least``."""
        value = self.notes.get(name)
        good = isinstance(value, list) and len(value) == count
        if not good or not all(
            type(v) is int and least <= v < 2**31
            for v in value  # type: ignore[union-attr]
        ):
            raise self.refused(f"has a note {name} that is not {count} numbers from {least}")
        return np.asarray(value, dtype=np.int32)

    def check(self, one_row: Any, batch: int) -> Any:
        """Refuse what no stream of this model holds, before anything of its size is made.

        Parameters
        ----------
        one_row
            Nested arrays as the file holds them, with one row each; the file may hold more arrays.

        Returns
        -------
        array
            How many tokens each row has read, in NumPy.
        """
        for name, leaf in named_leaves(one_row):
            self.shape(name, (batch, *leaf.shape[1:]))
        read = self.whole_numbers("read", batch, least=0)
        for name, array in self.arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise self.refused(f"holds NaN or infinity in {name[:80]}")
        for name in self.arrays:
            if name.endswith(".valid"):
                self._check_entries(name.removesuffix("valid"), read)
        return read

    def _check_entries(self, memory: str, read: Any) -> None:
        """Compare positions and arrival numbers of one memory with its clock and what was read."""
        fields = ("valid", "position", "arrival", "clock")
        given: list[Any] = [self.arrays.get(memory + field) for field in fields]
        if any(array is None for array in given):
            return
        valid, position, arrival, clock = given
        same = valid.shape == position.shape == arrival.shape and clock.shape == valid.shape[:1]
        if not same or [array.dtype.kind for array in given] != ["b", "i", "i", "i"]:
            raise self.refused(f"holds arrays of {memory[:80]} that do not belong together")
        rows = (-1, *[1] * (valid.ndim - 1))
        if (valid & ((position < FIRST_POSITION) | (position >= read.reshape(rows)))).any():
            raise self.refused(f"holds positions in {memory[:80]} that no token was read at")
        last = clock.reshape(rows)
        early = valid & ((arrival < 0) | (arrival >= last))
        if (clock < 0).any() or early.any():
            raise self.refused(f"holds entries in {memory[:80]} that its clock has not counted")
        # Of the others, each gets a number of its own.
        others = -1 - np.arange(valid.shape[-1], dtype=np.int64)
        own = np.sort(np.where(valid, arrival, others), axis=-1)
        if (own[..., 1:] == own[..., :-1]).any():
            raise self.refused(f"holds two entries in {memory[:80]} that arrived at once")

    def fill(self, like: Any, to: Backend) -> Any:
        """Return the nesting of ``like`` with the arrays of the file, in its dtypes."""
        expected = dict(named_leaves(like))
        if expected.keys() != self.arrays.keys():
            odd = sorted(expected.keys() ^ self.arrays.keys())
            raise self.refused(
                f"holds {len(self.arrays)} arrays where {len(expected)} are expected, and differs "
                f"in {odd[0][:80]!r}"
            )
        names = iter(expected)

        def taken(leaf: Any) -> Any:
            name = next(names)
            array = self.arrays[name]
            own = np.asarray(to.to_numpy(to.xp.reshape(leaf, (-1,))[:0]))
            # A bfloat16 is saved as a float32, so only the kind of number has to be the same.
            if array.shape != tuple(leaf.shape) or not _alike(array.dtype, own.dtype):
                raise self.refused(
                    f"holds {name} as {array.dtype} of shape {array.shape}, expected shape "
                    f"{tuple(leaf.shape)}"
                )
            return to.xp.astype(beside(array, leaf), leaf.dtype)

        return tree_map(taken, like)

    def refused(self, what: str) -> StateError:
        """Return an error about this file."""
        return StateError(
            f"Model.restore: {self.path} {what}. It is damaged, or belongs to another model, "
            "memory or version."
        )


def sorted_queues(tree: Any) -> Any:
    """Put the entries of every `DataOnlyState` in a tree in the order in which they arrived.

    Memories keep them in this order; files of older versions may have them in any order.
    """
    if isinstance(tree, DataOnlyState):
        found = backend_of(tree.arrival)
        arrival = np.asarray(found.to_numpy(tree.arrival))
        order = beside(np.argsort(arrival, axis=1, kind="stable"), tree.arrival)
        clock = tree.clock
        held: DataOnlyState = tree_map(
            lambda leaf: gather_slots(leaf, order, axis=1), tree._replace(clock=None)
        )
        return held._replace(clock=clock)
    if isinstance(tree, tuple):
        parts = [sorted_queues(part) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


def _alike(one: Any, other: Any) -> bool:
    kinds = ["f" if d.name == "bfloat16" else d.kind for d in (one, other)]
    return bool(kinds[0] == kinds[1])


def fingerprint(params: Any, to_numpy: Callable[[Any], Any]) -> int:
    """Return a number that tells parameters from others of the same shapes, on every backend."""
    leaves = list(tree_leaves(params))
    total = 0
    for i in range(min(_SAMPLES, len(leaves))):
        leaf = leaves[i * (len(leaves) - 1) // max(_SAMPLES - 1, 1)]
        while leaf.ndim > 1:
            leaf = leaf[0, ...]
        sample = np.asarray(to_numpy(leaf[:_SAMPLE])).astype("<f4")
        total = zlib.crc32(sample.tobytes(), total)
    return total


def _checksum(arrays: dict[str, Any], notes: str) -> int:
    total = zlib.crc32(notes.encode())
    for name in sorted(arrays):
        array = arrays[name]
        total = zlib.crc32(f"{name} {array.dtype.name} {array.shape}".encode(), total)
        total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return total


def write_arrays(
    path: str | Path, tree: Any, to_numpy: Callable[[Any], Any], notes: dict[str, Any]
) -> None:
    """Write nested arrays and some notes; the file is complete, or it is what it was before.

    Arrays of NumPy may be among them, such as those of stores outside of the device.
    """
    arrays = {
        name: _portable(leaf if isinstance(leaf, np.ndarray) else to_numpy(leaf))
        for name, leaf in named_leaves(tree)
    }
    text = json.dumps(notes)
    metadata = {"format": _FORMAT, "checksum": str(_checksum(arrays, text)), "notes": text}
    try:
        with replacing(path) as file:
            # Wide numbers first, so that each begins at a multiple of its width.
            wide = sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)
            write_safetensors("Stream.save", file, {n: arrays[n] for n in wide}, metadata)
    except OSError as error:
        raise StateError(
            f"Stream.save: {path} cannot be written ({error}). What was there before is unchanged."
        ) from error


def _portable(array: Any) -> Any:
    array = np.array(array, order="C")
    # NumPy knows no bfloat16 of its own; a float32 holds every value.
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def read_arrays(path: str | Path) -> SavedArrays:
    """Read what `write_arrays` wrote."""
    open_file = _safetensors().safe_open
    if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
        raise StateError(f"Model.restore: {path} cannot be read as a saved stream: it is no file.")
    try:
        with open_file(str(path), framework="numpy") as file:
            header = file.metadata() or {}
            ours = header.get("format") in (_FIRST_FORMAT, _FORMAT)
            arrays = {name: file.get_tensor(name) for name in file.keys()} if ours else {}  # noqa: SIM118
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of compiled code is no Exception
        raise StateError(
            f"Model.restore: {path} cannot be read as a saved stream ({str(error)[:200]})."
        ) from error
    if not ours and str(header.get("format", "")).startswith(_FORMATS):
        raise StateError(
            f"Model.restore: {path} has the format {header['format'][:40]!r}, expected at most "
            f"{_FORMAT!r}. A later version saved it: update attendre-core."
        )
    if not ours:
        raise StateError(
            f"Model.restore: {path} is no saved stream, expected one that Stream.save wrote."
        )
    found = SavedArrays(path, arrays, {})
    # Between the parts of a header, JSON does not tell these from spaces.
    if any(sign in _header(path) for sign in b"\t\n\r"):
        raise found.refused("has a header that was changed")
    covered = header.get("notes", "") if header["format"] == _FORMAT else ""
    if header.get("checksum") != str(_checksum(arrays, covered)):
        raise found.refused("does not have the contents that its checksum promises")
    try:
        notes = json.loads(header.get("notes", ""))
    except (ValueError, RecursionError) as error:
        raise found.refused("has notes that cannot be read") from error
    if not isinstance(notes, dict):
        raise found.refused("has notes that are no object")
    return SavedArrays(path, arrays, notes)


def _header(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(int.from_bytes(file.read(8), "little"))


def _safetensors() -> Any:
    try:
        import safetensors
    except ModuleNotFoundError as error:
        raise ConfigError(
            "reading a saved stream needs safetensors. Install it with: "
            "pip install 'attendre-core[zoo]'."
        ) from error
    return safetensors
