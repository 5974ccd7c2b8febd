"""Call Numba's machine code from XLA through its foreign function interface.

XLA passes a handler the address of a C structure, the call frame, whose layout is part of a stable
binary interface. Numba has no C structures, so fields are accessed by their offset in words of
eight bytes::

    call frame   1 extensions, 2 API; 7 number and 9 addresses of arguments, 12 and 14 of results
    API          4 version, the minor one in the upper half
    extension    3 metadata: asks, once, for the version that the handler was written for
    metadata     3 version, 4 traits
    buffer       3 data, 4 number of axes, 5 their lengths

These offsets are the same in versions 0.1 to 0.3.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba import carray, cfunc, types
from numba.extending import intrinsic

from attendre_core.numba_kernels.toolchain import compiled
from attendre_core.numba_kernels.top_k import attend_rows

__all__ = ["handler_of_attend_rows"]

_OLDEST, _NEWEST = 1 << 32, 3 << 32  # 0.1 and 0.3
_FRAME, _API, _EXTENSION, _METADATA, _BUFFER = 15, 5, 4, 5, 6


def _pointer(context: Any, address: Any, kind: Any) -> Any:
    """Cast an address to a pointer to numbers of some type."""
    result = types.CPointer(kind.dtype)

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(result))

    return result(types.int64, kind), code


pointer = intrinsic(_pointer)


@compiled()
def _words(address: int, count: int) -> Any:
    return carray(pointer(address, np.int64), count)


@compiled()
def _length(buffer: Any, axis: int) -> int:
    """Return the length of an axis of a buffer."""
    axes = _words(buffer[5], buffer[4])
    return axes[axis]  # type: ignore[no-any-return]


@compiled()
def _version(api: int) -> int:
    """Return the newest version that XLA and this handler both know; no API is given in 0.1."""
    if api == 0:
        return _OLDEST
    version = _words(api, _API)[4]
    major = version & 0xFFFFFFFF
    return version if major == 0 and version < _NEWEST else _NEWEST


@compiled()
def _attend(address: int) -> int:
    frame = _words(address, _FRAME)
    if frame[1] != 0:
        metadata = _words(_words(frame[1], _EXTENSION)[3], _METADATA)
        metadata[3] = _version(frame[2])
        metadata[4] = 0
        return 0
    given, back = _words(frame[9], frame[7]), _words(frame[14], frame[12])
    logits, value = _words(given[0], _BUFFER), _words(given[1], _BUFFER)
    allowed, order = _words(given[2], _BUFFER), _words(given[4], _BUFFER)
    allowed_row, order_row = _words(given[3], _BUFFER), _words(given[5], _BUFFER)
    numbers, quantile = _words(given[6], _BUFFER), _words(given[7], _BUFFER)
    rows, slots = _length(logits, 0), _length(logits, 1)
    heads, dim = _length(value, 0), _length(value, 2)
    flags = carray(pointer(allowed[3], np.bool_), (_length(allowed, 0), _length(allowed, 1)))
    k_and_passes = carray(pointer(numbers[3], np.int32), 2)
    attend_rows(
        carray(pointer(logits[3], np.float32), (rows, slots)),
        carray(pointer(value[3], np.float32), (heads, slots, dim)),
        rows // heads,
        not flags.all(),
        flags,
        carray(pointer(allowed_row[3], np.int32), rows),
        carray(pointer(order[3], np.int32), (_length(order, 0), slots)),
        carray(pointer(order_row[3], np.int32), rows),
        k_and_passes[0],
        k_and_passes[1],
        carray(pointer(quantile[3], np.float32), 1)[0],
        carray(pointer(_words(back[0], _BUFFER)[3], np.float32), (rows, dim)),
        carray(pointer(_words(back[1], _BUFFER)[3], np.float32), rows),
        carray(pointer(_words(back[2], _BUFFER)[3], np.int32), rows),
        0,
        rows,
    )
    return 0


def handler_of_attend_rows() -> Any:
    """Compile the handler and return its address in a capsule, as XLA expects it."""
    handler = cfunc(types.int64(types.int64))(_attend.py_func)  # type: ignore[attr-defined]
    _KEPT.append(handler)
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return capsule(handler.address, None, None)


#: Keeps the handlers alive: XLA may call their addresses until the process ends.
_KEPT: list[Any] = []
