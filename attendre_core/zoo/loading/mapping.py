"""Map a file into memory, so that its weights are shared and read only when they are needed."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError

__all__ = ["mapped_bytes", "release"]


def mapped_bytes(file: Path) -> Any:
    """Return all bytes of a file as a uint8 array that shares memory with it.

    The mapping is copy-on-write: some libraries ask for writable memory, but the file never
    changes.
    """
    if not file.is_file():
        raise CheckpointError(f"{file}: is not a file, expected the weights of a model.")
    try:
        if file.stat().st_size == 0:
            raise CheckpointError(f"{file}: is empty. Download it again.")
        return np.asarray(np.memmap(file, dtype=np.uint8, mode="c"))
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).") from error


def release(array: Any) -> None:
    """Give the memory pages of a mapped array back; they are read again if they are needed.

    Parameters
    ----------
    array
        Contiguous, and not written to. Arrays that are not mapped stay as they are, and so does
        everything where the system cannot do it.
    """
    owner = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if not isinstance(owner, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    start = array.ctypes.data - np.frombuffer(owner, np.uint8).ctypes.data
    page = start - start % mmap.PAGESIZE
    owner.madvise(mmap.MADV_DONTNEED, page, start + array.nbytes - page)
