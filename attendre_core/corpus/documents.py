"""Documents in files, folders and standard input, read one by one; nothing is left out silently."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from attendre_core.paths import user_path

__all__ = ["Document", "Documents", "Note"]

#: The first bytes of a file, in which a NUL says that it is no text.
_HEAD = 8192
_JSON_LINES = (".jsonl", ".ndjson")


class Document(NamedTuple):
    """A text, the name by which it is known, its path or its id, and the file that it is in."""

    name: str
    text: str
    file: str = ""


class Note(NamedTuple):
    """A file, folder or line that is not among the documents, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}"


class Documents:
    r"""The documents of files, of folders with all that is in them, and of standard input.

    A file is one document under the name of its path. The lines of a ``.jsonl`` file are JSON
    objects, each a document. Iterating reads from the start, one document at a time, and what is
    no document is noted in ``skipped`` and ``problems``.

    Parameters
    ----------
    paths
        Files and folders; ``-`` is standard input. Of a folder, all files with text, in the order
        of their names.
    lines
        Each line is a document, under the name ``path:number``.
    field
        Lines are JSON objects with the text under this name, and the document's name under
        ``"id"`` if it is there. None: ``"text"``, in ``.jsonl`` files only.
    without
        Files that are none of the documents: what is being written.

    Attributes
    ----------
    skipped
        What is in a folder and no text: hidden, binary or empty.
    problems
        What should be a document and cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("Once.")
    >>> _ = (folder / "b.png").write_bytes(b"\0")
    >>> found = Documents([folder])
    >>> [document.text for document in found], [note.reason for note in found.skipped]
    (['Once.'], ['binary'])
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        *,
        lines: bool = False,
        field: str | None = None,
        without: Sequence[Path] = (),
    ) -> None:
        self.paths, self.lines, self.field = list(paths), lines, field
        self.without = {path.resolve() for path in without}
        self.skipped: list[Note] = []
        self.problems: list[Note] = []

    @property
    def total(self) -> int | None:
        """How many documents there are at most; None where that is not known without reading."""
        files = [name for name, _ in self._files()]
        self._forget()
        by_line = self.lines or self.field is not None
        return None if by_line or any(map(_is_json_lines, files)) else len(files)

    def missing(self, files: Iterable[str]) -> list[str]:
        """Return which of these files exist and are not among those that are read."""
        named = {Path(name).resolve() for name, _ in self._files()}
        self._forget()
        return sorted(
            file for file in files if Path(file).is_file() and Path(file).resolve() not in named
        )

    def __iter__(self) -> Iterator[Document]:
        self._forget()
        names: set[str] = set()
        for name, chosen in self._files():
            for document in self._in_file(name, chosen):
                document = document._replace(name=_printable(document.name), file=_printable(name))
                if document.name in names:
                    self._problem(document.name, "a name that another document has")
                    continue
                names.add(document.name)
                yield document

    # ---------------------------------------------------------------- inside

    def _forget(self) -> None:
        self.skipped, self.problems = [], []

    def _problem(self, name: str, reason: str) -> None:
        self.problems.append(Note(name, reason))

    def _files(self) -> Iterator[tuple[str, bool]]:
        """Yield the files, each once, and whether the caller named it."""
        seen = set(self.without)
        for path in self.paths:
            place = user_path(path)
            if str(path) == "-":
                yield "-", True
            elif place.is_dir():
                for file in self._in_folder(place):
                    if file.resolve() not in seen:
                        seen.add(file.resolve())
                        yield file.as_posix(), False
            elif place.resolve() not in seen:
                seen.add(place.resolve())
                yield place.as_posix(), True

    def _in_folder(self, folder: Path) -> Iterator[Path]:
        def failed(error: OSError) -> None:
            self._problem(str(error.filename), error.strerror or "cannot be read")

        for inside, folders, files in os.walk(folder, onerror=failed):
            hidden = [name for name in [*folders, *files] if name.startswith(".")]
            self.skipped += [Note((Path(inside) / name).as_posix(), "hidden") for name in hidden]
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            yield from (Path(inside) / name for name in sorted(files) if name not in hidden)

    def _in_file(self, name: str, chosen: bool) -> Iterator[Document]:
        try:
            if name != "-" and not Path(name).is_file():
                there = Path(name).exists() or Path(name).is_symlink()
                self._problem(name, "not a file" if there else "there is no such file")
                return
            with _opened(name) as file:
                json_lines = self.field is not None or _is_json_lines(name)
                if json_lines or self.lines:
                    yield from self._in_lines(name, file, json_lines)
                else:
                    yield from self._whole(name, file, chosen)
        except OSError as error:
            self._problem(name, error.strerror or "cannot be read")

    def _whole(self, name: str, file: BinaryIO, chosen: bool) -> Iterator[Document]:
        data = file.read(_HEAD)
        if b"\0" in data:
            notes = self.problems if chosen else self.skipped
            notes.append(Note(name, "binary"))
            return
        text = self._decoded(name, data + file.read())
        if text is None:
            return
        if text.strip():
            yield Document(name, text)
        else:
            self.skipped.append(Note(name, "empty"))

    def _in_lines(self, name: str, file: BinaryIO, json_lines: bool) -> Iterator[Document]:
        for number, line in enumerate(file, start=1):
            place = f"{name}:{number}"
            text = self._decoded(place, line)
            if text is None:
                continue
            if not text.strip():
                self.skipped.append(Note(place, "empty"))
            elif json_lines:
                yield from self._object(place, text)
            else:
                yield Document(place, text.rstrip("\r\n"))

    def _object(self, place: str, text: str) -> Iterator[Document]:
        field = self.field or "text"
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            self._problem(place, f"not JSON ({error})")
            return
        inner = found.get(field) if isinstance(found, dict) else None
        if not isinstance(inner, str):
            self._problem(place, f"no text under {field!r}; name its field with --field")
        elif not inner.strip():
            self.skipped.append(Note(place, "empty"))
        else:
            name = str(found.get("id", place))
            if (name + inner).isascii() or self._decoded(place, _encoded(name + inner)) is not None:
                yield Document(name, inner)

    def _decoded(self, name: str, data: bytes) -> str | None:
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self._problem(name, f"not UTF-8 (byte {error.start})")
            return None


def _encoded(text: str) -> bytes:
    """Return the bytes of a text; those of half a surrogate pair are not UTF-8."""
    return text.encode("utf-8", "surrogatepass")


def _is_json_lines(name: str) -> bool:
    return name.lower().endswith(_JSON_LINES)


def _opened(name: str) -> AbstractContextManager[BinaryIO]:
    if name != "-":
        return Path(name).open("rb")
    own: Any = getattr(sys.stdin, "buffer", None)
    return nullcontext(io.BytesIO(_encoded(sys.stdin.read())) if own is None else own)


def _printable(name: str) -> str:
    """Return a file's name as Unicode; on Linux it may be any bytes."""
    return os.fsencode(name).decode("utf-8", "replace")
