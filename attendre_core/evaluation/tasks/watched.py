"""Streams that measure what their memories do, and the bytes that a memory keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attendre_core.evaluation.controls import System
from attendre_core.evaluation.observer import Presence
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.memories import full_attention_bytes, shape_of, used_memory
from attendre_core.zoo.model import Model

__all__ = ["WatchedStream", "entries_held", "memory_bytes"]


class WatchedStream:
    """A stream over several inputs, with diagnostics of its memories.

    They are those of the layers that the memory governs: without a sliding window, if any is.

    Parameters
    ----------
    model
        The model; its own memory setting is ignored.
    memory
        The memories to read with.
    lengths
        Tokens of each input.

    Attributes
    ----------
    stream
        The stream of the model with that memory; the caller feeds it.
    """

    def __init__(self, model: Model, memory: MemoryConfig, lengths: Sequence[int]) -> None:
        part = model.reading_part
        layers = range(part.layers)
        # A layer with a sliding window holds its window, whatever the memory does.
        governed = [i for i in layers if memory.governs(i, part.window(i))]
        self._layers = governed or list(layers)
        self._presence = Presence(list(lengths), memory.chunk, self._layers)
        self.stream = model.with_memory(memory).stream(len(lengths), observer=self._presence)

    @property
    def admitted(self) -> NDArray[np.float64]:
        """(inputs,): the share of new entries that a full memory admitted."""
        reports = self.stream.reports()
        shares = [reports[i].admitted_share for i in self._layers]
        return np.asarray(np.mean(shares, axis=0), dtype=np.float64)

    @property
    def present(self) -> NDArray[np.float64]:
        """(inputs,): the share of their own chunk's entries that queries found."""
        return self._presence.shares


def memory_bytes(model: Model, system: System, length: int) -> int:
    """Return the bytes kept per input: the memories of all layers, and waiting queries.

    For full attention, these are the keys and values that the model itself holds after ``length``
    tokens; see `full_attention_bytes`. For an oracle, these are the entries that stay.
    """
    part = model.reading_part
    if system.whole:
        return full_attention_bytes(part, length, model.dtype, causal=model.causal)
    return _kept(model, system).nbytes(**shape_of(part, model.dtype))


def entries_held(model: Model, system: System, length: int) -> float:
    """Return the K/V entries held per layer and input, the mean over the layers.

    A chunk that is visible before it competes is held beside the M entries of a memory. Of full
    attention, this is what the model holds after ``length`` tokens.
    """
    part = model.reading_part
    windows = [part.window(i) for i in range(part.layers)]
    if system.whole:
        return sum(length if w is None else min(length, w) for w in windows) / part.layers
    memory = _kept(model, system)
    return sum(
        memory.kv_memory(i, window).slots(memory.chunk) for i, window in enumerate(windows)
    ) / len(windows)


def _kept(model: Model, system: System) -> MemoryConfig:
    """Return the memories whose entries are held; an oracle holds no chunk beside them."""
    memory = used_memory(model.reading_part, system.memory, causal=model.causal)
    return replace(memory, present="compete") if system.oracle else memory
