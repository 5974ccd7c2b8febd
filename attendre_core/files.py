"""Files that are complete, or what they were before."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["replacing", "sync_folder", "write_text"]

#: Bytes of a name. File systems allow 255, and a name aside is a little longer than the file's.
_LONGEST_NAME = 200


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file aside, and put it in the place of ``path`` once it is complete and on disk.

    The new file has the permissions of the old one. A symbolic link stays, and the file behind it
    is replaced. What is no file, such as ``/dev/stdout``, is written to. A process that is killed
    leaves ``.NAME.part``, which the next one that writes the same file takes over; two that write
    it at once wait for each other.

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
    target = Path(os.path.realpath(path))
    before = target.stat() if target.exists() else None
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if before is not None and not stat.S_ISREG(before.st_mode):
        with target.open("wb") as file:
            yield file
        return
    aside = _beside(target)
    try:
        opened = _opened(aside)
    except OSError as error:
        error.filename = str(path)  # the name that a caller knows
        raise
    with opened as file:
        try:
            if before is not None and hasattr(os, "fchmod"):
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":  # which moves no open file
                file.close()
            aside.replace(target)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
    sync_folder(target.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8 by `replacing`."""
    with replacing(path) as file:
        file.write(text.encode())


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk, where a system knows how."""
    if sys.platform == "win32":
        return
    with suppress(OSError):  # some file systems cannot, and some folders may only be written to
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _beside(target: Path) -> Path:
    """Return the name aside, shortened if it would be too long."""
    name = os.fsdecode(os.fsencode(target.name)[:_LONGEST_NAME])
    return target.with_name(f".{name}.part")


def _opened(aside: Path) -> BinaryIO:
    """Open an empty file that no other process writes; take over what a killed one left."""
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    while True:
        file = open(aside, "r+b", opener=lambda name, _: os.open(name, flags, 0o666))  # noqa: SIM115
        try:
            if _is_ours(file, aside):
                file.truncate()
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _is_ours(file: Any, aside: Path) -> bool:
    """Wait for whoever writes this file; return whether it is still aside after that."""
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows has no such locks
        return True
    with suppress(OSError):  # some file systems have none either
        fcntl.flock(file, fcntl.LOCK_EX)
    try:
        return os.path.samestat(os.fstat(file.fileno()), aside.lstat())
    except FileNotFoundError:  # it was moved to its place
        return False
