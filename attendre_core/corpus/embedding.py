"""Embed documents one after another, so that a run that was killed continues where it stopped.

::

    documents ──► window ──► Model.embed ──► journal (one fsync a window) ──► table, at the end

The journal lies beside the table until every document is in the table.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np

from attendre_core.corpus.documents import Document, Documents
from attendre_core.corpus.tables import Row, table_writer
from attendre_core.errors import ConfigError, StateError
from attendre_core.journal import Journal, Words
from attendre_core.zoo.model import Model
from attendre_core.zoo.pooling import Recipe
from attendre_core.zoo.saving import fingerprint
from attendre_core.zoo.spans_of_tokens import tokens_of

__all__ = ["EmbeddingRun", "embed_documents", "journal_of"]

Pooling = Literal["mean", "cls", "max", "last"]
#: Documents, and characters of documents, between two writes; a longer document is one write.
_DOCUMENTS, _CHARACTERS = 64, 1_000_000
_WORDS = Words(
    mark="attendre-embed",
    where="embed",
    elsewhere="Give another file with --out",
    same="documents can be added, other settings cannot.",
)


class EmbeddingRun(NamedTuple):
    """What a run did: counts of documents and tokens.

    Attributes
    ----------
    documents, tokens
        In the table.
    embedded
        Documents that this run embedded; the others were in the journal.
    """

    documents: int
    tokens: int
    embedded: int


def journal_of(out: Path) -> Path:
    """Return the file beside ``out`` that keeps what was embedded until the table is complete."""
    return out.with_name(f"{out.name}.journal")


def embed_documents(
    model: Model,
    documents: Documents,
    out: Path,
    *,
    name: str = "",
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    batch_size: int = 8,
    on_documents: Callable[[int], None] = lambda count: None,
) -> EmbeddingRun:
    """Embed documents and write a table of them, in their order.

    Results are on disk after every window of documents. A run that was killed continues with the
    same call: a document that is in the journal with the same text is not embedded again. The
    table is written at once when all are done, and the journal removed, unless a document could
    not be read: then it stays, for the next call.

    Parameters
    ----------
    model
        From `attendre_core.load`.
    documents
        What to embed.
    out
        The table; see `table_writer`.
    name
        Name of the model, which results belong to.
    pooling, normalize, batch_size
        As in `Model.embed`.
    on_documents
        Called with the number of documents that were just done.
    """
    write, journal_file = table_writer(out), journal_of(out)
    if out.exists() and not journal_file.exists():
        raise StateError(
            f"embed: {out} exists and is complete. Move it away, or give another file with --out."
        )
    pooling, normalize = _asked(model, pooling, normalize)
    notes = {
        "model": name,
        "weights": fingerprint(model.params, model.backend.to_numpy),
        "memory": "full" if model.memory is None else model.memory.name,
        "dtype": model.dtype,
        "pooling": pooling,
        "normalize": normalize,
    }
    with Journal(journal_file, notes, _WORDS) as journal:
        kept = {line["id"]: (line["text"], place) for place, line in journal.lines()}
        left = documents.missing({line.get("file", "") for _, line in journal.lines()})
        if left:
            raise _incomplete(journal_file, left)
        order: list[str] = []
        embedded = 0
        for window in _windows(documents):
            order += [document.name for document in window]
            new = [d for d in window if kept.get(d.name, ("",))[0] != _digest(d.text)]
            if new:
                rows = [tokens_of(model, f"embed: {d.name}", d.text) for d in new]
                found = model.embed(rows, pooling, normalize, batch_size=batch_size)
                vectors = np.asarray(model.backend.to_numpy(found), dtype="<f4")
                journal.append(map(_line, new, rows, vectors))
                embedded += len(new)
            on_documents(len(window))
        if not order:
            if not kept:
                journal_file.unlink()
            raise _nothing(documents)
        # Of two lines about a document, the later one is about its present text.
        places = {line["id"]: place for place, line in journal.lines()}
        lines = journal.at(places[document] for document in order)
        counted = _Counted(map(_row, lines))
        write(out, counted, model.reading_part.dim, notes)
    if not documents.problems:
        journal_file.unlink()
    return EmbeddingRun(counted.rows, counted.tokens, embedded)


def _incomplete(journal: Path, files: list[str]) -> StateError:
    names = ", ".join(files[:5]) + (f" and {len(files) - 5:,} more" if len(files) > 5 else "")
    return StateError(
        f"embed: {journal} has documents of {names} from an earlier run, which are not among what "
        "is given now and would not be in the table. Give all together, or another file with "
        "--out."
    )


def _nothing(documents: Documents) -> ConfigError:
    notes = [*documents.problems, *documents.skipped]
    found = "; ".join(map(str, notes[:5])) or "the folders are empty"
    return ConfigError(
        f"embed: {', '.join(map(str, documents.paths))[:300]}: there is no document to embed "
        f"({found}). Give files or folders with text, or - for standard input."
    )


def _asked(
    model: Model, pooling: Pooling | None, normalize: bool | None
) -> tuple[Pooling | None, bool]:
    """Return what `Model.embed` will do, to be noted; None is for it to refuse."""
    recipe = model.recipe or Recipe()
    if pooling is None and not recipe.refused:
        return cast(Pooling, recipe.pooling), recipe.normalize if normalize is None else normalize
    return pooling, bool(normalize)


def _windows(documents: Documents) -> Iterator[list[Document]]:
    """Group documents, so that those of one window fit into memory and are one write."""
    window: list[Document] = []
    size = 0
    for document in documents:
        if window and size + len(document.text) > _CHARACTERS:
            yield window
            window, size = [], 0
        window.append(document)
        size += len(document.text)
        if len(window) == _DOCUMENTS:
            yield window
            window, size = [], 0
    if window:
        yield window


class _Counted:
    """Rows on their way into a table, counted."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._inner = rows
        self.rows = self.tokens = 0

    def __iter__(self) -> Iterator[Row]:
        for row in self._inner:
            self.rows += 1
            self.tokens += row.tokens
            yield row


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _line(document: Document, row: Any, vector: Any) -> dict[str, Any]:
    return {
        "id": document.name,
        "file": document.file,
        "text": _digest(document.text),
        "tokens": len(row),
        "vector": base64.b64encode(vector.tobytes()).decode(),
    }


def _row(line: dict[str, Any]) -> Row:
    vector = np.frombuffer(base64.b64decode(line["vector"]), dtype="<f4")
    return Row(line["id"], line["tokens"], vector)
