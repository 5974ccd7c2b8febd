"""Hand tensors of a file over to an array library: shared where they fit, else piece by piece.

What has to change (its dtype, the order of its rows, quantised numbers) is written in small pieces
into memory of its final size, and the pages of the file are given back after each piece. Loading
so takes hardly more memory than the parameters themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attendre_core.backend import Array, Backend
from attendre_core.checks import dtype_named
from attendre_core.zoo.architectures.base import Tensor
from attendre_core.zoo.loading.mapping import release

__all__ = ["NUMPY_DTYPES", "Stored", "placed"]

#: How numbers lie in a file; NumPy lacks bfloat16, so it holds the bits.
NUMPY_DTYPES = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2"}
#: Bytes of a piece that is converted at once.
_PIECE = 2**20
#: What every library can share, in bytes.
_ALIGNMENT = 64


@dataclass(frozen=True)
class Stored:
    """A tensor as it lies in a file, usually mapped and not read yet.

    Attributes
    ----------
    array
        In NumPy: numbers, with the bits as uint16 for bfloat16, or what ``decode`` takes. An
        array of the library itself if the model is in memory already.
    dtype
        ``"float32"``, ``"float16"``, ``"bfloat16"`` or ``"float64"``; of decoded rows, if they
        are decoded.
    shape
        Of the tensor, if it differs from that of ``array``.
    decode
        Turns rows of ``array`` into rows of numbers; None if they are numbers.
    order
        Row i of the tensor is row ``order[i]`` of ``array``; None if the order is the same.
    """

    array: Any
    dtype: str
    shape: tuple[int, ...] | None = None
    decode: Callable[[Any], Any] | None = None
    order: Any = None

    @property
    def full_shape(self) -> tuple[int, ...]:
        """The shape of the tensor."""
        return tuple(self.array.shape) if self.shape is None else self.shape

    @property
    def is_plain(self) -> bool:
        """Whether the tensor is ``array``."""
        return self.decode is None and self.order is None

    def pieces(self, start: int, stop: int, size: int) -> Iterator[tuple[int, Any]]:
        """Yield rows from ``start`` to ``stop``, ``size`` at a time, with the place of the first.

        A piece is to be used before the next is asked for: the pages of the file are given back.
        """
        for first in range(start, stop, size):
            last = min(first + size, stop)
            source = self.array[first:last] if self.order is None else self.array
            rows = source if self.order is None else source[self.order[first:last]]
            yield first - start, rows if self.decode is None else self.decode(rows)
            release(source)


def placed(stored: Stored, tensor: Tensor, backend: Backend, dtype: str, device: Any) -> Array:
    """Return a tensor of a file as an array of a library.

    Parameters
    ----------
    tensor
        Which part of it.
    dtype
        The name of the dtype that it becomes.
    device
        A device of the library; None is its default.
    """
    if not isinstance(stored.array, np.ndarray):  # a model in memory: its own array, if whole
        array = stored.array if tensor.rows is None else stored.array[slice(*tensor.rows)]
        array = array.T if tensor.transposed else array
    else:
        start, stop = (0, stored.full_shape[0]) if tensor.rows is None else tensor.rows
        held = "float32" if dtype == "bfloat16" and backend.share is None else dtype
        array = _shareable(stored, start, stop, held, backend.alignment)
        array = array.T if tensor.transposed else array
        if backend.share is None:
            array = backend.from_numpy(array, device=device)
        else:
            array = backend.share(array, held, device)
        release(stored.array[start:stop] if stored.is_plain else stored.array)
    wanted = dtype_named(backend.xp, dtype)
    return array if array.dtype == wanted else backend.xp.astype(array, wanted)


def _shareable(stored: Stored, start: int, stop: int, dtype: str, alignment: int) -> Any:
    """Return rows as NumPy numbers of a dtype: those of the file, or a copy where they differ."""
    source = stored.array[start:stop]
    fits = stored.is_plain and stored.dtype == dtype and source.flags.aligned
    flags = source.flags  # of an ONNX file, some are read-only or transposed
    fits = fits and flags.c_contiguous and flags.writeable
    if fits and source.ctypes.data % alignment == 0:
        return source
    shape = (stop - start, *stored.full_shape[1:])
    result = _empty(shape, NUMPY_DTYPES[dtype])
    row = max(result.nbytes // max(len(result), 1), 1)
    for place, rows in stored.pieces(start, stop, max(_PIECE // row, 1)):
        numbers = _widened(rows) if stored.dtype == "bfloat16" != dtype else rows
        target = result[place : place + len(rows)]
        with np.errstate(over="ignore"):  # beyond the range of a narrow dtype lies infinity
            target[...] = _rounded(numbers) if dtype == "bfloat16" != stored.dtype else numbers
    return result


def _empty(shape: tuple[int, ...], dtype: str) -> Any:
    """Make an array at an address that every library can share."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + size].view(dtype).reshape(shape)


def _widened(bits: Any) -> Any:
    """Turn the bits of bfloat16 into float32."""
    wide = bits.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def _rounded(numbers: Any) -> Any:
    """Turn numbers into the bits of the nearest bfloat16, of the even one between two."""
    bits = numbers.astype(np.float32).view(np.uint32)
    nearest = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, nearest).astype(np.uint16)
