"""The records of a trace: when each position arrived in a memory, when it left, and why.

An entry that left never returns, so two step numbers and a reason per position describe the whole
map of steps and positions. The record of a layer takes 9 bytes per token, however many steps there
are; the map is made on demand.
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

#: The states of a position at a step, as numbers in maps and as words.
AHEAD, HELD, EVICTED, REFUSED = range(4)
STATES = ("not read yet", "in memory", "evicted", "refused")
_REFUSED = REASONS.index("refused")


class Attended(NamedTuple):
    """What the query of the last token attended to in one layer.

    Attributes
    ----------
    step
        The step in which it attended; with a Q memory, after the step in which its key arrived.
    position
        int32, (entries,): positions that any head retrieved, increasing.
    weight
        float32, (heads, entries): the weights of a head sum to 1, or to 0 if it saw no entries.
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
    """When each position arrived in the memory of one layer, and when it left.

    Attributes
    ----------
    layer
        Number of the layer, from 0 at the input.
    size
        M of its memory.
    born
        int32, (tokens,): the step in which the position arrived at the memory.
    gone
        int32, (tokens,): the step in which it left, or -1 if it is still there. A refused
        position leaves in the step of its arrival (in the next one with ``present="visible"``).
        With eviction per head, the step in which the last head evicted it.
    reason
        int8, (tokens,): why it left, an index into `attendre_core.layer.REASONS`.
    steps
        Number of steps.
    attended
        What the last token attended to; None if it did not reach this layer.
    window
        The sliding window of the layer, which then holds that many positions whatever M is; None
        if it has none.
    """

    layer: int
    size: int
    born: NDArray[np.int32]
    gone: NDArray[np.int32]
    reason: NDArray[np.int8]
    steps: int
    attended: Attended | None
    window: int | None = None

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
        """Return the survival map, (steps, tokens); it takes a byte per pair of step and token."""
        return np.stack([self.at(step) for step in range(self.steps)])

    def counts(self) -> dict[str, int]:
        """Return how many positions are in memory at the end, evicted, and refused."""
        last = self.at(self.steps - 1)
        return {
            name: int((last == state).sum())
            for name, state in (("held", HELD), ("evicted", EVICTED), ("refused", REFUSED))
        }


@dataclass(frozen=True, eq=False)
class PolicyTrace:
    """The trace of one memory.

    Attributes
    ----------
    name
        Name of the memory, as shown.
    memory
        Its settings.
    layers
        The recorded layers, from the input upwards.
    steps
        Number of steps, including those that release waiting queries at the end.
    next_words
        The likeliest next words with their probabilities; empty for an encoder.
    full
        True for full attention: a memory in which there is room for everything.
    """

    name: str
    memory: MemoryConfig
    layers: tuple[LayerTrace, ...]
    steps: int
    next_words: tuple[tuple[str, float], ...] = ()
    full: bool = False

    def answers(self, answer: str | None) -> bool | None:
        """Return whether the likeliest next word is the right one; None if nobody can say."""
        if answer is None or not self.next_words:
            return None
        return self.next_words[0][0] == answer


@dataclass(frozen=True, eq=False)
class TextTrace:
    """The traces of several memories over the same text.

    Attributes
    ----------
    title
        What was read, and by which model.
    words
        The text of each token; joined, they are the whole text.
    policies
        One trace per memory.
    answer
        The right next word, if it is known.
    """

    title: str
    words: tuple[str, ...]
    policies: tuple[PolicyTrace, ...]
    answer: str | None = None

    @property
    def winner(self) -> int:
        """The memory to look at first: the surest right one, else the last that has a limit."""
        bounded = [i for i, policy in enumerate(self.policies) if not policy.full]
        right = [i for i in bounded if self.policies[i].answers(self.answer)]
        if right:
            return max(right, key=lambda i: self.policies[i].next_words[0][1])
        return bounded[-1] if bounded else 0
