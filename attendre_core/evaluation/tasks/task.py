"""What every task gives to a sweep: items, the metrics measured on them, and how to measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from attendre_core.evaluation.controls import System
from attendre_core.zoo.model import Model

__all__ = ["Item", "Metric", "Score", "Scores", "Task"]

#: Something with a ``name`` that is unique within its task.
Item = Any
#: The numbers of one item, by the names of metrics and diagnostics.
Score = dict[str, float]
#: The scores of some items, by the names of the items.
Scores = list[tuple[str, Score]]


class Metric(NamedTuple):
    """A number that is measured on every item.

    Attributes
    ----------
    name, label
        In the results file, and at the head of a column.
    share
        It is between 0 and 1 and shown in percent.
    higher
        More is better.
    exponential
        The exponential of the mean is shown: a perplexity, where losses are measured.
    digits
        Decimals shown, unless it is a share.
    """

    name: str
    label: str
    share: bool = False
    higher: bool = True
    exponential: bool = False
    digits: int = 2


class Task(Protocol):
    """Something a model with a memory can be measured on.

    Laws: ``items`` depends on ``identity`` and the model alone; what ``measure`` says about an
    item depends neither on the items beside it nor on the size of a batch.
    """

    name: ClassVar[str]
    #: The most important one first.
    metrics: ClassVar[tuple[Metric, ...]]
    #: Controls that make sense here.
    controls: ClassVar[tuple[str, ...]]
    #: All items of a cell are measured together: either all of them are there or none.
    whole: ClassVar[bool]
    #: Positions at the beginning that the control "pinned" never evicts.
    pinned: ClassVar[int]
    #: Full attention makes sense beyond the length that the model was trained on.
    clamps: ClassVar[bool]

    def identity(self) -> dict[str, Any]:
        """Return what the items depend on, as plain values."""

    def items(self, model: Model) -> list[Item]:
        """Return the items, each with a ``name``."""

    def longest(self, items: Sequence[Item]) -> int:
        """Return the tokens of the longest item."""

    def measure(
        self, model: Model, items: Sequence[Item], system: System, batch: int
    ) -> Iterator[Scores]:
        """Measure items, some at a time."""
