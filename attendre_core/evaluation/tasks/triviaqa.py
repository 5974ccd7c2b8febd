"""The paper's task: TriviaQA questions over long contexts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from attendre_core.evaluation.tasks.contexts import ContextRule, context_of
from attendre_core.evaluation.tasks.passages import as_written
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask
from attendre_core.evaluation.tasks.templates import template_of
from attendre_core.evaluation.tasks.text_files import checksum
from attendre_core.evaluation.tasks.triviaqa_files import read_triviaqa
from attendre_core.zoo.model import Model

__all__ = ["TriviaQA"]


@dataclass(frozen=True)
class TriviaQA(QuestionTask):
    """TriviaQA with the paper's template.

    Parameters
    ----------
    data, evidence
        As in `read_triviaqa`.
    rule
        How contexts are built. If it sets a length, questions without a passage that contains
        the answer are left out.
    question
        ``"first"`` as in the paper, or ``"last"``, after the context.
    """

    data: str = ""
    evidence: str | None = None
    rule: ContextRule = field(default_factory=ContextRule)
    question: Literal["first", "last"] = "first"

    name: ClassVar[str] = "triviaqa"

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {
            "data": Path(self.data).name,
            "sha256": checksum(self.data),
            "template": template_of(self.question),
            "context_tokens": self.rule.tokens,
            "depth": self.rule.depth,
            "gold": self.rule.gold,
            "seed": self.rule.seed,
            "new_tokens": self.new_tokens,
        }

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield the questions in the order of the file."""
        # Contexts of a set length are filled with passages of any other question of the file.
        limit = self.limit if self.rule.tokens is None else None
        examples = read_triviaqa(self.data, self.evidence, limit)
        for example in examples:
            context = context_of(model, example, examples, self.rule)
            if context is not None:
                answers = as_written(example.answers, context.gold)
                yield question_of(
                    model, example.name, example.question, context.text, answers,
                    template_of(self.question),
                )  # fmt: skip
