"""Find a pass key in a long text of small talk: the simplest test of a memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from attendre_core.evaluation.tasks.contexts import ContextRule, context_of
from attendre_core.evaluation.tasks.passages import Example, Passage
from attendre_core.evaluation.tasks.question import Question, question_of
from attendre_core.evaluation.tasks.question_answering import QuestionTask, asked_last
from attendre_core.evaluation.tasks.templates import template_of
from attendre_core.zoo.model import Model

__all__ = ["Needle"]

#: Parts of the sentences of small talk; every combination is a sentence.
_WHO = ("The baker", "A neighbour", "The old teacher", "My sister", "A sailor", "The gardener")
_DOES = ("talks about", "dreams of", "writes about", "likes", "remembers", "paints")
_WHAT = ("the harbour", "warm bread", "a long winter", "the red bridge", "quiet mornings")
_SENTENCES = 6


@dataclass(frozen=True)
class Needle(QuestionTask):
    """Find the pass key that one sentence of a long text gives.

    Parameters
    ----------
    rule
        Length of the text, and the depth of the sentence in it.
    question
        Whether the question comes before the context or after it.
    """

    limit: int | None = 20
    rule: ContextRule = field(default_factory=lambda: ContextRule(tokens=1024))
    question: Literal["first", "last"] = "first"

    name: ClassVar[str] = "needle"
    pinned: ClassVar[int] = 24

    def identity(self) -> dict[str, Any]:
        """Return everything that the questions depend on."""
        return {
            **asked_last(self.question),
            "context_tokens": self.rule.tokens,
            "depth": self.rule.depth,
            "seed": self.rule.seed,
            "new_tokens": self.new_tokens,
        }

    def questions(self, model: Model) -> Iterator[Question]:
        """Yield questions about texts with a pass key."""
        rng = np.random.default_rng((self.rule.seed, 0))
        length = self.rule.tokens or 1024
        others = [small_talk(rng, number) for number in range(length // 8)]
        for number in range(20 if self.limit is None else self.limit):
            digits = "".join(str(d) for d in rng.integers(0, 10, 5))
            hidden = Passage("", f"The pass key is {digits}. Remember it.", True)
            example = Example(f"needle-{number}", "What is the pass key?", (digits,), (hidden,))
            context = context_of(model, example, others, self.rule)
            if context is not None:
                yield question_of(
                    model, example.name, example.question, context.text, example.answers,
                    template_of(self.question),
                )  # fmt: skip


def small_talk(rng: np.random.Generator, number: int) -> Example:
    """Make a passage of sentences without digits."""
    sentences = [
        f"{rng.choice(_WHO)} {rng.choice(_DOES)} {rng.choice(_WHAT)}." for _ in range(_SENTENCES)
    ]
    return Example(f"talk-{number}", "", (), (Passage("", " ".join(sentences), False),))
