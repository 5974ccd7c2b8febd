"""The benchmarks that ask a question about a context; each says where its questions come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attendre_core.errors import ConfigError
from attendre_core.evaluation.benchmarks.answering import Answered, answered
from attendre_core.evaluation.benchmarks.benchmark import Metric, Score, Scores
from attendre_core.evaluation.benchmarks.normalisation import contains, exact_match, f1
from attendre_core.evaluation.benchmarks.question import Question
from attendre_core.evaluation.systems import CONTROLS, System
from attendre_core.zoo.model import Model

__all__ = ["ReadingBenchmark"]

LIKELIHOOD = Metric("log_likelihood", "log-lik.")
EXACT = Metric("exact_match", "EM", share=True)
F1 = Metric("f1", "F1", share=True)
CONTAINS = Metric("contains", "contains", share=True)


@dataclass(frozen=True)
class ReadingBenchmark:
    """Base of the reading benchmarks.

    Parameters
    ----------
    limit
        Questions at most; None takes all.
    new_tokens
        Tokens that the model writes; 0 measures the log-likelihood alone.
    """

    limit: int | None = None
    new_tokens: int = 16

    name: ClassVar[str] = ""
    metrics: ClassVar[tuple[Metric, ...]] = (LIKELIHOOD, EXACT, F1, CONTAINS)
    controls: ClassVar[tuple[str, ...]] = CONTROLS
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 48
    clamps: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """Return what the questions depend on."""
        raise NotImplementedError

    def questions(self, model: Model) -> Iterator[Question]:
        """Return the questions, one after the other."""
        raise NotImplementedError

    def items(self, model: Model) -> list[Question]:
        """Return the questions that are asked."""
        if model.architecture.kind == "encoder":
            raise ConfigError(
                f"eval {self.name}: an encoder writes no answers. Give a decoder or an "
                "encoder-decoder, or use the task 'embedding'."
            )
        found: list[Question] = []
        for question in self.questions(model):
            if self.limit is not None and len(found) == self.limit:
                break
            found.append(question)
        if not found:
            raise ConfigError(f"eval {self.name}: there is no question that can be asked.")
        return found

    def longest(self, items: Sequence[Question]) -> int:
        """Return the tokens of the longest prompt."""
        return max(len(item.tokens) for item in items)

    def measure(
        self, model: Model, items: Sequence[Question], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read questions and compare the answers."""
        some = iter(items)
        for answers in answered(
            model, items, system, batch=batch, new_tokens=self.new_tokens, pinned=self.pinned
        ):
            yield [
                (item.name, self._score(item, answer))
                for answer, item in zip(answers, some, strict=False)
            ]

    def _score(self, item: Question, answer: Answered) -> Score:
        score = {"log_likelihood": answer.log_likelihood}
        if self.new_tokens:
            score |= {
                "exact_match": float(exact_match(answer.text, item.aliases)),
                "f1": f1(answer.text, item.aliases),
                "contains": float(contains(answer.text, item.aliases)),
            }
        return score | {
            "admitted": answer.admitted,
            "present": answer.present,
            "bytes": float(answer.nbytes),
        }
