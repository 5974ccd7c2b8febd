"""Controls: what must be beaten before a memory can be said to work.

They tell "the memory found the answer" from "the question survived", "the beginning was enough"
and "anything would have done".
"""

from __future__ import annotations

from dataclasses import dataclass

from attendre_core.backend import Array, namespace_of
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import Policy, RandomTies, Stored
from attendre_core.presets import MemoryConfig

__all__ = ["FirstOnly", "PinnedMemory", "RandomSample"]


@dataclass(frozen=True)
class FirstOnly(Policy):
    """Keep the first M entries and refuse everything after them: a frozen memory.

    Examples
    --------
    >>> import numpy as np
    >>> memory = KeyValueMemory(size=4, policy=FirstOnly())
    >>> chunk = np.ones((1, 9, 1, 2), dtype=np.float32)
    >>> state, _ = memory.insert(memory.init(1, 1, 2), chunk, chunk)
    >>> sorted(state.position[0].tolist())
    [0, 1, 2, 3]
    """

    def enter(self, stored: Stored, count: Array) -> Array:
        """Return 0: no score is needed."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Prefer what came earlier."""
        xp = namespace_of(stored.score)
        return -xp.astype(stored.arrival, stored.score.dtype)


@dataclass(frozen=True)
class RandomSample(Policy):
    """Keep a random sample of everything read, each entry as likely as any other.

    Parameters
    ----------
    seed
        The sample depends on it and on the order of arrival alone, on every library.

    Examples
    --------
    >>> RandomSample(seed=3)
    RandomSample(seed=3)
    """

    seed: int = 0

    def enter(self, stored: Stored, count: Array) -> Array:
        """Return 0: no score is needed."""
        return namespace_of(stored.score).zeros_like(stored.score[..., 0])

    def priority(self, stored: Stored) -> Array:
        """Give each entry a number that looks random and never changes."""
        xp = namespace_of(stored.score)
        return xp.astype(RandomTies(self.seed).order(stored.arrival), stored.score.dtype)


@dataclass(frozen=True)
class PinnedMemory(MemoryConfig):
    """Memories that never give up the first positions, where the question stands.

    Parameters
    ----------
    pinned
        How many positions.

    Examples
    --------
    >>> from attendre_core import FIFO
    >>> PinnedMemory(FIFO(), kv_size=32, pinned=10).kv_memory(0).pin
    ((0, 10),)
    """

    pinned: int = 10

    def kv_memory(self, layer: int = 0) -> KeyValueMemory:
        """Return the K/V memory of one layer."""
        policy = self.policy_of(layer)
        return KeyValueMemory(
            size=self.kv_size, policy=policy, present=self.present, pin=((0, self.pinned),)
        )
