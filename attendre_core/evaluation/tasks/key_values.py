"""Key-value retrieval from a file: many random keys, one of which is asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from attendre_core.errors import ConfigError
from attendre_core.evaluation.tasks.multi_key import around, read_records
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask
from attendre_core.evaluation.tasks.templates import template_of
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.zoo.model import Model

__all__ = ["KeyValues"]


@dataclass(frozen=True)
class KeyValues(QuestionTask):
    """The value of one key in a JSON object of many, as in "lost in the middle".

    Parameters
    ----------
    data
        JSON lines, optionally compressed (``.gz``), with ``ordered_kv_records`` and ``key``.
    tokens
        Length of a context: as many records as fit, around the one asked for.
    depth
        Where the record asked for is, 0 to 1; None leaves it where it is in the file.
    question
        ``"last"``: after the records; ``"first"``: before them.
    """

    new_tokens: int = 48
    data: str = ""
    tokens: int = 1024
    depth: float | None = None
    question: Literal["first", "last"] = "last"

    name: ClassVar[str] = "kv"

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            "context_tokens": self.tokens,
            "depth": self.depth,
            "question": self.question,
            "new_tokens": self.new_tokens,
        }

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield a question per line of the file."""
        for number, (records, key) in enumerate(read_records(self.data)):
            lengths = [len(model.tokens(_line(record), special=False)) for record in records]
            count = max(int(self.tokens // (sum(lengths) / len(lengths))), 1)
            chosen = around(records, key, count, self.depth)
            # Lengths differ a little from record to record.
            while len(chosen) > 1 and self._length(model, chosen) > self.tokens:
                count -= 1
                chosen = around(records, key, count, self.depth)
            if self._length(model, chosen) > self.tokens:
                raise ConfigError(
                    f"eval kv: {self.tokens} tokens are too few for one record. Give more with "
                    "--context-tokens."
                )
            template = template_of(self.question) + f'The value of the key "{key}" is "'
            question = f'What is the value of the key "{key}"?'
            value = dict(records)[key]
            context = json.dumps(dict(chosen), indent=0)
            yield question_of(model, f"record-{number}", question, context, [value], template)

    def _length(self, model: Model, records: list[tuple[str, str]]) -> int:
        return len(model.tokens(json.dumps(dict(records), indent=0), special=False))


def _line(record: tuple[str, str]) -> str:
    return f'"{record[0]}": "{record[1]}",\n'
