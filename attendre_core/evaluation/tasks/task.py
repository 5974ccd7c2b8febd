"""The interface of a task: its items, its metrics, and how items are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from attendre_core.evaluation.controls import System
from attendre_core.zoo.model import Model

__all__ = ["Item", "Metric", "OracleTask", "Score", "Scores", "Task"]

#: Something with a ``name`` that is unique within its task.
Item = Any
#: The numbers of one item, by the names of metrics and diagnostics.
Score = dict[str, float]
#: The scores of some items, by the names of the items.
Scores = list[tuple[str, Score]]


class Metric(NamedTuple):
    """A number that is measured on items.

    Attributes
    ----------
    name, label
        Its name in results files, and its column title in tables.
    share
        Whether it is between 0 and 1 and shown in percent.
    higher
        Whether higher is better.
    exponential
        Whether tables show the exponential of the mean, such as the perplexity of a loss.
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
    """A task that a model with a memory can be measured on.

    Laws: an item depends only on ``identity`` and the model; its score depends neither on the
    items measured with it nor on the size of a batch.
    """

    name: ClassVar[str]
    #: The most important one first.
    metrics: ClassVar[tuple[Metric, ...]]
    #: Controls that apply to the task.
    controls: ClassVar[tuple[str, ...]]
    #: Whether the items of a cell can only be measured all together.
    whole: ClassVar[bool]
    #: Positions at the beginning that the control "pinned" never evicts.
    pinned: ClassVar[int]
    #: Whether full attention also works beyond the length that the model was trained on.
    clamps: ClassVar[bool]

    def identity(self) -> dict[str, Any]:
        """Return everything that the items depend on, as values for JSON."""

    def items(self, model: Model) -> list[Item]:
        """Return the items, each with a ``name``."""

    def longest(self, items: Sequence[Item]) -> int:
        """Return the number of tokens of the longest item."""

    def measure(
        self, model: Model, items: Sequence[Item], system: System, batch: int
    ) -> Iterator[Scores]:
        """Measure items and yield their scores, some at a time."""


class OracleTask(Task, Protocol):
    """A task in which a context ends, so that an oracle can choose what to keep of it."""

    def measure_oracles(
        self, model: Model, items: Sequence[Item], systems: Sequence[System], batch: int
    ) -> Iterator[list[Scores]]:
        """Measure oracles that share their reads: the scores of some items, for each system."""
