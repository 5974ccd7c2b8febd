"""The synthetic reading tasks with the tiny models, through the same sweep as everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

from attendre_core.errors import ConfigError
from attendre_core.evaluation.accuracy import measure
from attendre_core.evaluation.benchmarks.benchmark import Metric, Scores, memory_bytes
from attendre_core.evaluation.systems import CONTROLS, System
from attendre_core.evaluation.tasks import TASKS, Document
from attendre_core.evaluation.tasks.vocabulary import VOCABULARY
from attendre_core.zoo.model import Model

__all__ = ["NamedDocument", "Synthetic"]


class NamedDocument(NamedTuple):
    """A document of a synthetic task, and its name."""

    name: str
    document: Document


@dataclass(frozen=True)
class Synthetic:
    """Documents of a synthetic task.

    Parameters
    ----------
    task
        ``"look-ahead"`` or ``"past-only"``.
    answers
        ``"repeat"`` or ``"single"``.
    limit, seed
        How many documents, and which.
    chunk
        Documents have 8 to 32 chunks of so many tokens.
    """

    task: str = "look-ahead"
    answers: Literal["repeat", "single"] = "repeat"
    limit: int | None = 48
    seed: int = 0
    chunk: int = 16

    name: ClassVar[str] = "synthetic"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("right", "right", share=True),)
    controls: ClassVar[tuple[str, ...]] = CONTROLS
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 10
    clamps: ClassVar[bool] = True

    def identity(self) -> dict[str, Any]:
        """Return what the documents depend on."""
        return {"synthetic": self.task, "answers": self.answers, "seed": self.seed}

    def items(self, model: Model) -> list[NamedDocument]:
        """Draw the documents."""
        if model.reading_part.vocabulary != VOCABULARY:
            raise ConfigError(
                f"eval synthetic: this model has {model.reading_part.vocabulary} tokens, the task "
                f"{VOCABULARY}. Give --model prefix-lm or --model encoder-decoder, which ship "
                "with the package."
            )
        count = 48 if self.limit is None else self.limit
        drawn = TASKS[self.task](self.answers).documents(self.seed, count, chunk=self.chunk)
        return [NamedDocument(f"document-{i}", document) for i, document in enumerate(drawn)]

    def longest(self, items: Sequence[NamedDocument]) -> int:
        """Return the tokens of the longest document."""
        return max(item.document.tokens.size for item in items)

    def measure(
        self, model: Model, items: Sequence[NamedDocument], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read documents, a batch at a time."""
        for start in range(0, len(items), batch):
            some = items[start : start + batch]
            outcome = measure(model, [item.document for item in some], system, batch=batch)
            yield [
                (
                    item.name,
                    {
                        "right": float(right),
                        "admitted": float(admitted),
                        "present": float(present),
                        "bytes": float(
                            memory_bytes(model, system, system.tokens(item.document).size)
                        ),
                    },
                )
                for item, right, admitted, present in zip(some, *outcome, strict=True)
            ]
