"""What a trace consists of: for each position when it arrived and when it left.

An entry that left never returns. So two numbers per position describe a whole map of steps and
positions, and the record of a layer takes 9 bytes per token, however many steps there were; the map
itself is made on demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.layer.trace import REASONS
from attendre_core.presets import MemoryConfig

__all__ = [
    "AHEAD",
    "EVICTED",
    "HELD",
    "REFUSED",
    "STATES",
    "Attended",
    "LayerTrace",
    "PolicyTrace",
    "TextTrace",
]

#: The state of a position at a step: numbers in the maps, and words.
AHEAD, HELD, EVICTED, REFUSED = range(4)
STATES = ("not read yet", "in memory", "evicted", "refused")
_REFUSED = REASONS.index("refused")


class Attended(NamedTuple):
    """What the query of the last token attended to in one layer.

    Attributes
    ----------
    step
        When it attended; with a Q memory, later than its key arrived.
    position
        int32, (entries,): increasing; what the query could see.
    weight
        float32, (heads, entries): each head sums to 1, or to 0 if there was nothing to see.
    """

    step: int
    position: NDArray[np.int32]
    weight: NDArray[np.float32]

    @property
    def mean(self) -> NDArray[np.float32]:
        """(entries,): the mean over the heads."""
        mean: NDArray[np.float32] = self.weight.mean(axis=0, dtype=np.float32)
        return mean


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """The lives of all positions in one layer.

    Attributes
    ----------
    layer
        Its number, from 0 at the input.
    size
        M of its memory.
    born
        int32, (tokens,): the step in which the position arrived at the memory.
    gone
        int32, (tokens,): the step in which it left: for a refused one the step of its arrival (the
        next one with ``present="visible"``); -1 while it is there. With eviction per head, when
        the last head evicted it.
    reason
        int8, (tokens,): why, an index into `attendre_core.layer.REASONS`.
    steps
        Number of steps.
    attended
        What the last token attended to; None if nothing in this layer.
    """

    layer: int
    size: int
    born: NDArray[np.int32]
    gone: NDArray[np.int32]
    reason: NDArray[np.int8]
    steps: int
    attended: Attended | None

    @property
    def survivors(self) -> NDArray[np.int32]:
        """The positions in memory at the end, in increasing order."""
        return np.flatnonzero(self.at(self.steps - 1) == HELD).astype(np.int32)

    def at(self, step: int) -> NDArray[np.int8]:
        """Return the state of each position after a step, an index into `STATES`."""
        state = np.where(self.born <= step, HELD, AHEAD).astype(np.int8)
        left = (self.gone >= 0) & (self.gone <= step)
        state[left] = np.where(self.reason == _REFUSED, REFUSED, EVICTED)[left]
        return state

    def map(self) -> NDArray[np.int8]:
        """Return the survival map, (steps, tokens): a byte per pair, so mind long inputs."""
        return np.stack([self.at(step) for step in range(self.steps)])

    def counts(self) -> dict[str, int]:
        """Return how many positions are in memory at the end, were evicted, were refused."""
        last = self.at(self.steps - 1)
        return {
            name: int((last == state).sum())
            for name, state in (("held", HELD), ("evicted", EVICTED), ("refused", REFUSED))
        }


@dataclass(frozen=True, eq=False)
class PolicyTrace:
    """One memory over the text.

    Attributes
    ----------
    name
        Of the policy, as the user calls it.
    memory
        Its sizes and policies.
    layers
        From the input upwards; those that were asked for.
    steps
        Steps of reading, and of releasing the queries that waited.
    next_words
        The likeliest next words with their probabilities; empty for an encoder.
    """

    name: str
    memory: MemoryConfig
    layers: tuple[LayerTrace, ...]
    steps: int
    next_words: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, eq=False)
class TextTrace:
    """Memories side by side over the same text.

    Attributes
    ----------
    title
        What was read with which model.
    words
        The text of each token; joined, they are the text.
    policies
        One trace for each memory.
    """

    title: str
    words: tuple[str, ...]
    policies: tuple[PolicyTrace, ...]
