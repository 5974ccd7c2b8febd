"""What every benchmark gives to a sweep: items, what is measured on them, and how to measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Protocol

from attendre_core.evaluation.controls import PinnedMemory
from attendre_core.evaluation.systems import System
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.model import Model

__all__ = [
    "Benchmark",
    "Item",
    "Metric",
    "Score",
    "Scores",
    "memory_bytes",
    "memory_of",
    "reads_whole",
]

#: Something with a ``name`` that tells it from the other items of its benchmark.
Item = Any
#: The numbers of one item, by the names of the metrics and diagnostics.
Score = dict[str, float]
Scores = list[tuple[str, Score]]


class Metric(NamedTuple):
    """A number that is measured on every item.

    Attributes
    ----------
    name, label
        In the results file, and at the head of a column.
    share
        It lies between 0 and 1, and is shown in per cent.
    higher
        More is better.
    exponential
        The exponential of the mean is shown: a perplexity, where losses are measured.
    """

    name: str
    label: str
    share: bool = False
    higher: bool = True
    exponential: bool = False


class Benchmark(Protocol):
    """A task that `attendre eval` knows.

    Laws: ``items`` depends on ``identity`` alone; what ``measure`` says of an item does not
    depend on the items beside it, nor on the size of a batch.
    """

    name: ClassVar[str]
    #: The most important one first.
    metrics: ClassVar[tuple[Metric, ...]]
    #: Controls that mean something here.
    controls: ClassVar[tuple[str, ...]]
    #: All items of a cell are measured together, and are there together or not at all.
    whole: ClassVar[bool]
    #: Positions at the beginning that question-pinned FIFO never gives up.
    pinned: ClassVar[int]
    #: Full attention makes sense beyond the length that the model was made for.
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


def reads_whole(system: System) -> bool:
    """Whether nothing of what a system reads is ever evicted."""
    return system.whole or system.reads != "all"


def memory_of(model: Model, system: System, longest: int, pinned: int) -> MemoryConfig:
    """Return the memory with which a system reads inputs of up to so many tokens.

    Full attention is a memory in which everything has room, and in which all queries wait for the
    end if the model looks both ways. Controls that read only a part read it that way.
    """
    if reads_whole(system):
        if model.causal:
            room = max(longest, system.memory.chunk)
            memory = replace(system.memory, kv_size=room, q_size=0)
        else:
            memory = replace(system, whole=True).memory_for(longest)
    else:
        memory = system.memory
    if isinstance(memory, PinnedMemory):
        memory = replace(memory, pinned=max(1, min(pinned, memory.kv_size // 2)))
    return replace(memory, encoder_outputs=min(memory.encoder_outputs, longest))


def memory_bytes(model: Model, system: System, length: int) -> int:
    """Return the bytes that one row keeps: keys and values, and queries that wait.

    What reads a whole keeps the keys and values of ``length`` tokens.
    """
    memory = system.memory
    part, number = model.reading_part, 2 if "16" in model.dtype else 4
    width = part.kv_heads * part.head_dim
    if reads_whole(system):
        return 2 * number * width * length * part.layers
    waiting = memory.q_size * (part.heads * part.head_dim + part.dim) * number
    sizes = [
        memory.kv_memory(layer).nbytes(
            1, part.kv_heads, part.head_dim, model.dtype, chunk=memory.chunk
        )
        for layer in range(part.layers)
    ]
    return sum(sizes) + waiting * part.layers
