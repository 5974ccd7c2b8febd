"""Inputs read side by side through a memory that is watched, and what a memory weighs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.controls import System
from attendre_core.evaluation.observer import Presence
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.model import Model

__all__ = ["WatchedStream", "memory_bytes"]


class WatchedStream:
    """A stream for several inputs, and what its memories did with them.

    Parameters
    ----------
    model
        Its own memory does not matter.
    memory
        What it reads with.
    lengths
        Tokens of each input.

    Attributes
    ----------
    stream
        The stream of the model with that memory, to be fed.
    """

    def __init__(self, model: Model, memory: MemoryConfig, lengths: Sequence[int]) -> None:
        self._presence = Presence(list(lengths), memory.chunk)
        self.stream = model.with_memory(memory).stream(len(lengths), observer=self._presence)

    @property
    def admitted(self) -> NDArray[np.float64]:
        """(inputs,): of the new entries that met a full memory, the share that got in."""
        shares = [report.admitted_share for report in self.stream.reports()]
        return np.asarray(np.mean(shares, axis=0), dtype=np.float64)

    @property
    def present(self) -> NDArray[np.float64]:
        """(inputs,): the share of a chunk's own entries that its queries found."""
        return self._presence.shares


def memory_bytes(model: Model, system: System, length: int) -> int:
    """Return the bytes kept per input: keys and values, and queries that wait.

    A system that evicts nothing keeps the keys and values of ``length`` tokens.
    """
    memory = system.memory
    part, number = model.reading_part, 2 if "16" in model.dtype else 4
    if system.whole:
        return 2 * number * part.kv_heads * part.head_dim * length * part.layers
    waiting = memory.q_size * (part.heads * part.head_dim + part.dim) * number
    sizes = [
        memory.kv_memory(layer).nbytes(
            1, part.kv_heads, part.head_dim, model.dtype, chunk=memory.chunk
        )
        for layer in range(part.layers)
    ]
    return sum(sizes) + waiting * part.layers
