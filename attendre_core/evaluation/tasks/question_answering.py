"""Base class of the tasks that ask questions about contexts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from attendre_core.errors import ConfigError
from attendre_core.evaluation.controls import CONTROLS, System
from attendre_core.evaluation.tasks.answering import Answered, answered, answered_by_oracles
from attendre_core.evaluation.tasks.normalisation import contains, exact_match, f1
from attendre_core.evaluation.tasks.question import Question
from attendre_core.evaluation.tasks.task import Metric, Score, Scores
from attendre_core.zoo.model import Model

__all__ = ["QuestionTask", "asked_last"]


@dataclass(frozen=True)
class QuestionTask:
    """A task that asks questions about contexts; subclasses provide the questions.

    Parameters
    ----------
    limit
        Use at most this many questions; None uses all.
    new_tokens
        Tokens that the model may write; 0 measures only the log-likelihood.
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
        """Return everything that the questions depend on."""
        raise NotImplementedError

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield the questions one by one."""
        raise NotImplementedError

    def items(self, model: Model) -> list[Question]:
        """Return the first ``limit`` questions."""
        if model.architecture.kind == "encoder":
            raise ConfigError(
                f"eval {self.name}: an encoder writes no answers. Give a decoder or an "
                "encoder-decoder, or use the task 'embedding'."
            )
        asked: list[Question] = []
        for question in self.questions(model):
            if self.limit is not None and len(asked) == self.limit:
                break
            asked.append(question)
        if not asked:
            raise ConfigError(f"eval {self.name}: there are no questions, expected at least one.")
        return asked

    def longest(self, items: Sequence[Question]) -> int:
        """Return the number of tokens of the longest prompt."""
        return max(len(item.tokens) for item in items)

    def measure(
        self, model: Model, items: Sequence[Question], system: System, batch: int
    ) -> Iterator[Scores]:
        """Read questions and score the answers."""
        remaining = iter(items)
        for answers in answered(model, items, system, batch=batch, new_tokens=self.new_tokens):
            yield [
                (item.name, self._score(item, answer))
                for answer, item in zip(answers, remaining, strict=False)
            ]

    def measure_oracles(
        self, model: Model, items: Sequence[Question], systems: Sequence[System], batch: int
    ) -> Iterator[list[Scores]]:
        """Score the answers of several oracles, which share a read with full attention."""
        start = 0
        for answers in answered_by_oracles(
            model, items, systems, batch=batch, new_tokens=self.new_tokens
        ):
            some = items[start : start + batch]
            start += batch
            yield [
                [(item.name, self._score(item, one)) for item, one in zip(some, each, strict=True)]
                for each in answers
            ]

    def _score(self, item: Question, answer: Answered) -> Score:
        score = {"log_likelihood": answer.log_likelihood}
        if self.new_tokens:
            score |= {
                "exact_match": float(exact_match(answer.text, item.aliases)),
                "f1": f1(answer.text, item.aliases),
                "contains": _found(answer.text, item),
            }
        if not math.isnan(answer.present):
            score |= {"admitted": answer.admitted, "present": answer.present}
        return score | {
            "bytes": float(answer.nbytes),
            "entries": answer.entries,
            "seconds": answer.seconds,
        }


def asked_last(question: Literal["first", "last"]) -> dict[str, str]:
    """Return what an identity says of a question after its context; nothing if it is before."""
    return {} if question == "first" else {"question": question}


def _found(text: str, item: Question) -> float:
    """Return 1 if an answer is in the text; of several that are asked for, the share."""
    if not item.parts:
        return float(contains(text, item.aliases))
    return sum(contains(text, [part]) for part in item.parts) / len(item.parts)
