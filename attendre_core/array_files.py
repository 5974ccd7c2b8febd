"""Arrays in one file that is mapped into memory, not read.

The layout is that of safetensors: eight bytes with the length of a JSON header, the header, the
arrays one after another. A file is not trusted: everything in the header is compared with the
size of the file before an array is made of it.
"""

from __future__ import annotations

import json
import math
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from attendre_core.errors import StateError
from attendre_core.files import replacing

__all__ = ["map_arrays", "write_arrays", "write_safetensors"]

_FORMAT = "attendre-store-1"
#: Names of safetensors for what a store may hold, in the byte order of files.
_KINDS = {
    "F16": "<f2", "F32": "<f4", "F64": "<f8", "I8": "|i1", "I16": "<i2", "I32": "<i4",
    "I64": "<i8", "U8": "|u1", "U16": "<u2", "U32": "<u4", "U64": "<u8", "BOOL": "|b1",
}  # fmt: skip
_NAMES = {np.dtype(kind): name for name, kind in _KINDS.items()}
#: A header of some hundred rows of arrays is far shorter.
_LONGEST_HEADER = 2**24
_MOST_AXES = 8
#: Bytes that are read at a time for a checksum.
_BLOCK = 2**24


def write_arrays(
    where: str, path: str | Path, arrays: dict[str, Any], notes: dict[str, Any]
) -> None:
    """Write arrays and notes; the file is complete, or it is what it was before.

    Parameters
    ----------
    where
        Who speaks in messages, such as ``"Store.save"``.
    arrays
        NumPy arrays by name, which may be mapped themselves.
    notes
        What JSON can hold.
    """
    sums = {name: _checksum(array) for name, array in arrays.items()}
    text = json.dumps({"notes": notes, "checksums": sums}, sort_keys=True)
    own = {"format": _FORMAT, "about": text, "about_checksum": str(zlib.crc32(text.encode()))}
    try:
        with replacing(path) as file:
            write_safetensors(where, file, arrays, own)
    except OSError as error:
        raise StateError(
            f"{where}: {path} cannot be written ({error}). What was there before is unchanged."
        ) from error


def write_safetensors(
    where: str, file: BinaryIO, arrays: dict[str, Any], metadata: dict[str, str]
) -> None:
    """Write arrays in the format of safetensors; equal arrays and metadata give equal bytes."""
    total = 0
    header: dict[str, Any] = {}
    for name, array in arrays.items():
        if np.dtype(array.dtype).newbyteorder("<") not in _NAMES:
            raise StateError(
                f"{where}: {name} is {array.dtype}, expected one of "
                f"{', '.join(str(np.dtype(kind)) for kind in _KINDS.values())}."
            )
        stop = total + array.nbytes
        header[name] = {
            "dtype": _NAMES[np.dtype(array.dtype).newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [total, stop],
        }
        total = stop
    lead = json.dumps({"__metadata__": metadata, **header}).encode()
    lead += b" " * (-len(lead) % 8)
    file.write(len(lead).to_bytes(8, "little") + lead)
    for array in arrays.values():
        for block in _blocks(array):
            file.write(block)


def map_arrays(
    where: str, path: str | Path, *, verify: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Map the arrays of a file, read-only; return them and the notes.

    Parameters
    ----------
    where
        Who speaks in messages, such as ``"Store.open"``.
    verify
        Read everything once and compare its checksums.
    """
    file = Path(path)
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise StateError(f"{where}: {path} cannot be read: it is no file.")
    try:
        size = file.stat().st_size
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(_LONGEST_HEADER, size - 8):
                raise _refused(where, path, f"has a header of {length} bytes")
            raw = opened.read(length)
    except OSError as error:
        raise StateError(f"{where}: {path} cannot be read ({error}).") from error
    try:
        header = json.loads(raw)
        own = header.pop("__metadata__")
        about = json.loads(own["about"])
        ours = own["format"] == _FORMAT
        whole = own["about_checksum"] == str(zlib.crc32(own["about"].encode()))
        notes, sums = about["notes"], about["checksums"]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise _refused(where, path, "has a header that cannot be read") from error
    if not ours or not whole or not isinstance(notes, dict) or not isinstance(sums, dict):
        raise _refused(where, path, "is no store, or its header does not have its checksum")
    arrays: dict[str, Any] = {}
    start = 0
    for name, entry in header.items():
        kind, shape, start = _described(where, path, name, entry, start, size - 8 - length)
        begin = 8 + length + start - math.prod(shape) * kind.itemsize
        if math.prod(shape):
            arrays[name] = np.memmap(file, kind, "r", begin, shape)
        else:
            arrays[name] = np.zeros(shape, kind)
    if start != size - 8 - length:
        raise _refused(
            where, path, f"has {size - 8 - length} bytes of arrays, and describes {start}"
        )
    if sums.keys() != arrays.keys():
        raise _refused(where, path, "has checksums of other arrays")
    if verify and any(_checksum(array) != sums[name] for name, array in arrays.items()):
        raise _refused(where, path, "does not have the contents that its checksums promise")
    return arrays, notes


def _described(
    where: str, path: str | Path, name: Any, entry: Any, start: int, size: int
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Check what a header says of an array; return its dtype, its shape and its end."""
    try:
        kind, shape, (first, last) = entry["dtype"], entry["shape"], entry["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise _refused(where, path, f"describes {str(name)[:40]!r} in another way") from error
    whole = isinstance(shape, list) and len(shape) <= _MOST_AXES
    if not whole or not all(type(n) is int and 0 <= n <= size for n in shape):
        raise _refused(where, path, f"gives {str(name)[:40]!r} an impossible shape")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _refused(where, path, f"gives {str(name)[:40]!r} the dtype {str(kind)[:20]!r}")
    dtype = np.dtype(_KINDS[kind])
    count = math.prod(shape) * dtype.itemsize
    if (first, last) != (start, start + count) or last > size:
        raise _refused(where, path, f"puts {str(name)[:40]!r} where it cannot be")
    return dtype, tuple(shape), start + count


def _blocks(array: Any) -> Any:
    """Yield the bytes of an array, some rows at a time."""
    if array.ndim == 0 or array.size == 0:
        yield np.ascontiguousarray(array).tobytes()
        return
    rows = max(1, _BLOCK // max(array.nbytes // len(array), 1))
    little = array.dtype.newbyteorder("<")
    for first in range(0, len(array), rows):
        yield np.ascontiguousarray(array[first : first + rows], dtype=little).tobytes()


def _checksum(array: Any) -> int:
    total = 0
    for block in _blocks(array):
        total = zlib.crc32(block, total)
    return total


def _refused(where: str, path: str | Path, what: str) -> StateError:
    writer = f"{where.partition('.')[0]}.save"
    return StateError(f"{where}: {path} {what}. It is damaged, or {writer} did not write it.")
