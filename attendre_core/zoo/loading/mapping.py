"""Map a file into memory, so that its weights are shared and read only when they are needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from attendre_core.errors import CheckpointError

__all__ = ["mapped_bytes"]


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
