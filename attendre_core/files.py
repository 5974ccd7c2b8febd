"""Files that are complete, or what they were before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["replacing"]


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file aside, and put it in the place of ``path`` once it is complete.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "numbers") as file:
    ...         _ = file.write(b"123")
    ...     [found.name for found in Path(folder).iterdir()]
    ['numbers']
    """
    target = Path(path)
    handle, name = tempfile.mkstemp(prefix=target.name, suffix=".part", dir=target.parent)
    os.close(handle)
    aside = Path(name)
    try:
        with aside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
