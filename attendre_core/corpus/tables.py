"""Vectors with the names of their documents, in a file that is complete or not there."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from attendre_core.errors import ConfigError, StateError
from attendre_core.files import replacing

__all__ = ["Row", "table_writer"]

#: Rows that are in memory at a time.
_GROUP = 1024


class Row(NamedTuple):
    """A document's name, how many tokens it has, and its vector, float32 (dim,)."""

    name: str
    tokens: int
    vector: Any


#: Writes rows, with what they depend on, under a path.
TableWriter = Callable[[Path, Iterable[Row], int, dict[str, Any]], None]


def table_writer(path: Path) -> TableWriter:
    r"""Return what writes a table of this suffix: ``(path, rows, dim, notes) -> None``.

    ``.parquet`` has the columns ``id``, ``tokens`` and ``vector``, a list of fixed size of
    float32, and the notes in its metadata; it needs pyarrow. ``.jsonl`` has an object per line
    with the same names.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "vectors.jsonl"
    >>> table_writer(file)(file, [Row("a.txt", 3, np.asarray([0.5, 1.0], np.float32))], 2, {})
    >>> file.read_text()
    '{"id": "a.txt", "tokens": 3, "vector": [0.5, 1.0]}\n'
    """
    writers: dict[str, Callable[..., None]] = {".parquet": _parquet, ".jsonl": _json_lines}
    if path.suffix not in writers:
        raise ConfigError(
            f"embed: {path} ends in {path.suffix or 'no suffix'!r}, expected "
            f"{' or '.join(writers)}. The suffix says how vectors are written."
        )
    if path.suffix == ".parquet":
        _pyarrow()

    def write(path: Path, rows: Iterable[Row], dim: int, notes: dict[str, Any]) -> None:
        try:
            with replacing(path) as file:
                writers[path.suffix](file, rows, dim, notes)
        except OSError as error:
            raise StateError(
                f"embed: {path} cannot be written ({error.strerror or error}). Nothing is lost: "
                "free some space, and the same command writes it."
            ) from error

    return write


def _parquet(file: BinaryIO, rows: Iterable[Row], dim: int, notes: dict[str, Any]) -> None:
    arrow = _pyarrow()
    columns = [
        ("id", arrow.string()),
        ("tokens", arrow.int32()),
        ("vector", arrow.list_(arrow.float32(), dim)),
    ]
    schema = arrow.schema(columns, metadata={"attendre": json.dumps(notes)})
    with arrow.parquet.ParquetWriter(file, schema) as writer:
        for group in _groups(rows):
            vectors = np.stack([row.vector for row in group]).reshape(-1)
            writer.write_table(
                arrow.table(
                    [
                        arrow.array([row.name for row in group], arrow.string()),
                        arrow.array([row.tokens for row in group], arrow.int32()),
                        arrow.FixedSizeListArray.from_arrays(arrow.array(vectors), dim),
                    ],
                    schema=schema,
                )
            )


def _json_lines(file: BinaryIO, rows: Iterable[Row], dim: int, notes: dict[str, Any]) -> None:
    for row in rows:
        # The shortest decimals that give the same float32, not those of its float64.
        vector = [float(str(number)) for number in row.vector]
        line = json.dumps({"id": row.name, "tokens": row.tokens, "vector": vector}) + "\n"
        file.write(line.encode())


def _groups(rows: Iterable[Row]) -> Iterable[list[Row]]:
    group: list[Row] = []
    for row in rows:
        group.append(row)
        if len(group) == _GROUP:
            yield group
            group = []
    if group:
        yield group


def _pyarrow() -> Any:
    try:
        importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "embed: a .parquet file needs the package pyarrow. Install it with: pip install "
            "'attendre-core[eval]', or name a .jsonl file."
        ) from error
    return importlib.import_module("pyarrow")
