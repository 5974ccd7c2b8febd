"""The header of a GGUF file, read with suspicion: no count or length in it is believed.

The reader of the gguf package trusts its input, and needs seconds for a large vocabulary. This
one compares everything with the size of the file before it is used.

::

    "GGUF" version │ counts │ key type value ... │ name shape kind offset ... │ padding │ data
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from attendre_core.errors import CheckpointError, ConfigError

__all__ = ["GGUFHeader", "TensorPlace", "read_gguf_header"]

_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _LIST = 8, 9
_VERSIONS = (2, 3)
_DEEPEST_LIST = 4
_MOST_AXES = 4
_LARGEST_ALIGNMENT = 2**16


class TensorPlace(NamedTuple):
    """Where a tensor lies.

    Attributes
    ----------
    shape
        Rows first, as in other formats; GGUF itself counts the other way round.
    kind
        A ``gguf.GGMLQuantizationType``.
    start, stop
        Its bytes in the file.
    """

    shape: tuple[int, ...]
    kind: Any
    start: int
    stop: int


class GGUFHeader(NamedTuple):
    """Metadata by key (numbers, texts, lists of texts, arrays of numbers), tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, TensorPlace]


def read_gguf_header(where: str, data: Any) -> GGUFHeader:
    """Read the header of a GGUF file.

    Parameters
    ----------
    where
        The file, for messages.
    data
        All its bytes as a uint8 array, usually mapped.

    Raises
    ------
    CheckpointError
        The file is truncated, damaged, or lies about its sizes.
    """
    cursor = _Cursor(where, data)
    if bytes(cursor.take(4)) != b"GGUF":
        raise CheckpointError(f"{where}: does not start with GGUF. It is no GGUF file.")
    version = cursor.number("<I")
    if version not in _VERSIONS:
        raise CheckpointError(
            f"{where}: is GGUF of version {version}, expected 2 or 3 in little-endian order. "
            "Convert the model again with a present-day llama.cpp."
        )
    tensor_count, key_count = cursor.number("<Q"), cursor.number("<Q")
    metadata: dict[str, Any] = {}
    for _ in range(cursor.count(key_count, 13, "metadata keys")):
        key = cursor.text()
        if key in metadata:
            raise CheckpointError(f"{where}: holds the key {key[:80]!r} twice. It is damaged.")
        metadata[key] = cursor.value(cursor.number("<I"))
    listed = [
        _tensor_entry(cursor) for _ in range(cursor.count(tensor_count, 32, "tensor entries"))
    ]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not (
        0 < alignment <= _LARGEST_ALIGNMENT and alignment & (alignment - 1) == 0
    ):
        raise CheckpointError(
            f"{where}: general.alignment is {str(alignment)[:80]}, expected a power of two up to "
            f"{_LARGEST_ALIGNMENT}. It is damaged."
        )
    start = -(-cursor.at // alignment) * alignment
    return GGUFHeader(metadata, _places(where, listed, start, alignment, len(data)))


class _Cursor:
    """Takes one thing after the other, and never anything beyond the end of the file."""

    def __init__(self, where: str, data: Any) -> None:
        self.where, self.data, self.at = where, memoryview(data), 0

    def take(self, length: int) -> memoryview:
        """Take some bytes."""
        stop = self.at + length
        if stop > len(self.data):
            raise CheckpointError(
                f"{self.where}: something of {length} bytes begins at byte {self.at}, but the "
                f"file has only {len(self.data)}. It is truncated or damaged; download it again."
            )
        taken = self.data[self.at : stop]
        self.at = stop
        return taken

    def number(self, form: str) -> Any:
        """Take a number, in the notation of `struct`."""
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def count(self, claimed: int, least: int, what: str) -> int:
        """Compare a count of things of at least ``least`` bytes with what is left of the file."""
        left = len(self.data) - self.at
        if claimed * least > left:
            raise CheckpointError(
                f"{self.where}: claims {claimed} {what}, but only {left} bytes are left. It is "
                "truncated or damaged; download it again."
            )
        return claimed

    def text(self) -> str:
        """Take a text with its length before it."""
        raw = self.take(self.number("<Q"))
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(
                f"{self.where}: a text at byte {self.at - len(raw)} is not UTF-8. It is damaged."
            ) from error

    def value(self, kind: int, depth: int = 0) -> Any:
        """Take a value of a kind."""
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            return np.frombuffer(self.take(dtype.itemsize), dtype).item()
        if kind == _TEXT:
            return self.text()
        if kind != _LIST or depth == _DEEPEST_LIST:
            raise CheckpointError(
                f"{self.where}: a value of kind {kind} ends at byte {self.at}, expected a number, "
                f"a text, or lists up to {_DEEPEST_LIST} deep. It is damaged."
            )
        inner, claimed = self.number("<I"), self.number("<Q")
        if inner in _NUMBERS:
            dtype = np.dtype(_NUMBERS[inner])
            self.count(claimed, dtype.itemsize, "numbers in a list")
            return np.frombuffer(self.take(claimed * dtype.itemsize), dtype)
        self.count(claimed, 8, "values in a list")
        return [self.value(inner, depth + 1) for _ in range(claimed)]


def _tensor_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    """Take name, shape, kind and offset."""
    name = cursor.text()
    axes = cursor.number("<I")
    if not 1 <= axes <= _MOST_AXES:
        raise CheckpointError(
            f"{cursor.where}: the tensor {name[:80]!r} has {axes} axes, expected 1 to "
            f"{_MOST_AXES}. It is damaged."
        )
    shape = tuple(cursor.number("<Q") for _ in range(axes))
    return name, shape[::-1], cursor.number("<I"), cursor.number("<Q")


def _places(
    where: str,
    listed: list[tuple[str, tuple[int, ...], int, int]],
    start: int,
    alignment: int,
    size: int,
) -> dict[str, TensorPlace]:
    """Find the bytes of each tensor: inside the file, aligned, and no byte in two tensors."""
    gguf = gguf_package()
    places: dict[str, TensorPlace] = {}
    for name, shape, number, offset in listed:
        try:
            kind = gguf.GGMLQuantizationType(number)
            block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError) as error:
            raise CheckpointError(
                f"{where}: the tensor {name[:80]!r} is quantised by kind {number}, which the "
                "installed gguf package does not know. Update it: pip install -U gguf."
            ) from error
        total = 1
        for length in shape:
            total *= length
        begin = start + offset
        end = begin + total // block * block_bytes
        if shape[-1] % block or total == 0 or offset % alignment or end > size or name in places:
            raise CheckpointError(
                f"{where}: the tensor {name[:80]!r} of shape {shape} and kind {kind.name} lies at "
                f"bytes {begin} to {end} of {size}, expected an unused name, whole blocks of "
                f"{block} numbers, an offset that {alignment} divides, and an end inside the "
                "file. It is truncated or damaged; download it again."
            )
        places[name] = TensorPlace(shape, kind, begin, end)
    reached = 0
    for name, place in sorted(places.items(), key=lambda item: item[1].start):
        if place.start < reached:
            raise CheckpointError(
                f"{where}: the tensor {name[:80]!r} begins at byte {place.start}, inside another "
                f"one that ends at {reached}. It is damaged."
            )
        reached = place.stop
    return places


def gguf_package() -> Any:
    """Import the gguf package, or say how to get it."""
    try:
        import gguf
    except ModuleNotFoundError as error:
        raise ConfigError(
            "load: a GGUF file needs the package gguf. Install it with: "
            "pip install 'attendre-core[zoo]'."
        ) from error
    return gguf
