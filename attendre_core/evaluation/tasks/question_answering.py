"""Base of the tasks that ask a question about a context."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import CONTROLS, System
from attendre_core.evaluation.tasks.answering import Answered, answered
from attendre_core.evaluation.tasks.normalisation import contains, exact_match, f1
from attendre_core.evaluation.tasks.question import Question
from attendre_core.evaluation.tasks.task import Metric, Score, Scores
from attendre_core.zoo.model import Model

__all__ = ["QuestionTask"]


@dataclass(frozen=True)
class QuestionTask:
    """A task that asks questions about contexts; a subclass says where they come from.

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
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("log_likelihood", "log-lik."),
        Metric("exact_match", "EM", share=True),
        Metric("f1", "F1", share=True),
        Metric("contains", "contains", share=True),
    )
    controls: ClassVar[tuple[str, ...]] = CONTROLS
    whole: ClassVar[bool] = False
    pinned: ClassVar[int] = 48
    clamps: ClassVar[bool] = False

    def identity(self) -> dict[str, Any]:
        """Return what the questions depend on."""
        raise NotImplementedError

    def questions(self, model: Model) -> Iterator[Question]:
        """Return the questions one by one."""
        raise NotImplementedError

    def items(self, model: Model) -> list[Question]:
        """Return the questions to ask."""
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
        for answers in answered(model, items, system, batch=batch, new_tokens=self.new_tokens):
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
