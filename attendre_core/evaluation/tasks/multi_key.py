"""Find the value of one key among many, in generated records or in those of a file."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.filler import ANIMALS, COLOURS
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask, asked_last
from attendre_core.evaluation.tasks.templates import template_of
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.paths import user_path
from attendre_core.zoo.model import Model

__all__ = ["MultiKey", "read_records"]


@dataclass(frozen=True)
class MultiKey(QuestionTask):
    """Find the value of one key among many.

    Parameters
    ----------
    data
        A file of JSON lines, optionally compressed (``.gz``), each with ``ordered_kv_records``
        and ``key``, as in "lost in the middle"; if empty, records are generated.
    keys
        Records per context: how many are generated, or how many of those in the file are used,
        around the one asked for.
    depth
        Where the record asked for is, 0 to 1; None leaves it where it is in the file, or samples
        its place.
    seed
        Seed of the generated records.
    question
        Whether the question comes before the context or after it.
    """

    limit: int | None = 20
    data: str = ""
    keys: int = 40
    depth: float | None = None
    seed: int = 0
    question: Literal["first", "last"] = "first"

    name: ClassVar[str] = "multi-key"
    pinned: ClassVar[int] = 48

    def __post_init__(self) -> None:
        most = len(COLOURS) * len(ANIMALS)
        if self.keys < 2 or (not self.data and self.keys > most):
            raise ConfigError(
                f"eval multi-key: keys is {self.keys}, expected 2 to {most} generated records."
            )

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {
            **asked_last(self.question),
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            "keys": self.keys,
            "depth": self.depth,
            "seed": self.seed,
            "new_tokens": self.new_tokens,
        }

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield questions about one record of a context."""
        for number, (records, key) in enumerate(self._sources()):
            records = around(records, key, self.keys, self.depth)
            value = dict(records)[key]
            if self.data:
                question = f'What is the value of the key "{key}"?'
                context = json.dumps(dict(records), indent=0)
            else:
                question = f"What is the code of the {key}?"
                context = " ".join(f"The code of the {k} is {v}." for k, v in records)
            template = template_of(self.question)
            yield question_of(model, f"record-{number}", question, context, [value], template)

    def _sources(self) -> Iterator[tuple[list[tuple[str, str]], str]]:
        if self.data:
            yield from read_records(self.data)
            return
        names = [f"{colour} {animal}" for colour in COLOURS for animal in ANIMALS]
        for number in range(20 if self.limit is None else self.limit):
            rng = np.random.default_rng((self.seed, number))
            chosen = [names[i] for i in rng.permutation(len(names))[: self.keys]]
            codes = [str(code) for code in rng.integers(1000, 10000, self.keys)]
            records = list(zip(chosen, codes, strict=True))
            yield records, chosen[int(rng.integers(self.keys))]


def read_records(path: str | Path) -> Iterator[tuple[list[tuple[str, str]], str]]:
    """Yield the records of each line of a file, and the key that is asked for."""
    file = user_path(path)
    if not file.is_file():
        raise ConfigError(f"eval multi-key: there is no file {file}. Give it with --data.")
    raw = file.read_bytes()
    try:
        text = gzip.decompress(raw) if file.suffix == ".gz" else raw
        for line in text.decode().splitlines():
            if line.strip():
                entry = json.loads(line)
                records = [(str(k), str(v)) for k, v in entry["ordered_kv_records"]]
                key = str(entry["key"])
                if key not in dict(records):
                    raise ValueError(f"{key} is not among the records")
                yield records, key
    except (
        *(EOFError, KeyError, OSError, TypeError, ValueError),
        *(RecursionError, zlib.error),
    ) as error:
        raise ConfigError(
            f"eval multi-key: {file} cannot be read ({error!r}). Expected JSON lines with "
            "ordered_kv_records and key."
        ) from error


def around(
    records: list[tuple[str, str]], key: str, keys: int, depth: float | None
) -> list[tuple[str, str]]:
    """Return ``keys`` records around the one asked for, moved to a depth unless it is None.

    Examples
    --------
    >>> [k for k, _ in around([("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")], "d", 3, 0.0)]
    ['d', 'b', 'c']
    """
    place = [k for k, _ in records].index(key)
    first = min(max(place - keys // 2, 0), max(len(records) - keys, 0))
    taken = records[first : first + keys]
    if depth is None:
        return taken
    rest = [record for record in taken if record[0] != key]
    at = round(depth * len(rest))
    return [*rest[:at], records[place], *rest[at:]]
