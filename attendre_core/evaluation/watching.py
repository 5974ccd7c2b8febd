"""A model that is watched while it reads, to see whether a chunk finds its own entries.

A Q memory lets queries wait. By the time they attend, their own keys and values may be gone,
evicted on the word of older queries. The share that is still there is worth a column in every
table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import backend_of
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import Block, Flow
from attendre_core.layer.trace import StepTrace
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.model import Model
from attendre_core.zoo.reading import Reader
from attendre_core.zoo.stacks import ModelStack

__all__ = ["Presence", "WatchedModel"]


class Presence:
    """Counts, for each row, queries that attended and the share of their own chunk they found.

    Parameters
    ----------
    lengths
        Tokens of each row.
    chunk
        Tokens read at a time.
    """

    def __init__(self, lengths: list[int], chunk: int) -> None:
        self.chunk = chunk
        self._lengths = np.asarray(lengths)
        self._found = np.zeros(len(lengths))
        self._queries = np.zeros(len(lengths))

    def note(self, state: LayerState, flow: Flow) -> None:
        """Look at a memory right after the queries of ``flow`` attended to it."""
        to_numpy = backend_of(flow.position).to_numpy
        place, real = np.asarray(to_numpy(flow.position)), np.asarray(to_numpy(flow.valid))
        stored = np.where(to_numpy(state.kv.valid), to_numpy(state.kv.position), -self.chunk)
        if stored.ndim == 3:  # one choice for each head: count them all, and divide
            heads = stored.shape[1]
            stored = stored.reshape(stored.shape[0], -1)
        else:
            heads = 1
        own, held = place // self.chunk, stored // self.chunk
        there = (held[:, None, :] == own[:, :, None]).sum(axis=-1) / heads
        size = np.minimum(self._lengths[:, None] - own * self.chunk, self.chunk)
        self._found += np.where(real, there / np.maximum(size, 1), 0.0).sum(axis=1)
        self._queries += real.sum(axis=1)

    @property
    def shares(self) -> NDArray[np.float64]:
        """The mean share of each row, over all layers and positions; 1 where nothing attended."""
        nothing = self._queries == 0
        return np.where(nothing, 1.0, self._found / np.where(nothing, 1.0, self._queries))


class WatchedModel(Model):
    """The same model, which tells a `Presence` what its memories hold.

    Parameters
    ----------
    model
        Parameters are shared with it.
    memory
        Its memories.
    presence
        Fits rows and chunk of the stream that will be read.
    """

    def __init__(self, model: Model, memory: MemoryConfig, presence: Presence) -> None:
        super().__init__(
            model.architecture, model.params, memory=memory, library=model.library,
            dtype=model.dtype, tokenizer=model.tokenizer, attention=model.attention,
            end=model.end,
        )  # fmt: skip
        self.presence = presence

    def reader(self) -> Reader:
        """Return the reader, with eyes on it."""
        memory = cast(MemoryConfig, self.memory)
        part, params = self.reading_part, self.reading_params
        return _WatchedReader(
            part, params, memory, self.library, self.dtype, causal=self.causal
        ).watched_by(self.presence)


class _WatchedReader(Reader):
    presence: Presence

    def watched_by(self, presence: Presence) -> Reader:
        self.presence = presence
        return self

    def stack(self, length: int) -> ModelStack:
        plain = super().stack(length)
        return _WatchedStack(plain.layers, plain.library, self.presence)


@dataclass(frozen=True)
class _WatchedStack(ModelStack):
    presence: Any = field(default=None, compare=False, repr=False)

    def step_layer(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        state, flow, trace = super().step_layer(number, state, block, flow, donate)
        self.presence.note(state, flow)
        return state, flow, trace

    def empty_layer(
        self, number: int, state: LayerState, block: Block, length: int
    ) -> tuple[LayerState, list[Flow]]:
        state, flows = super().empty_layer(number, state, block, length)
        for flow in flows:
            self.presence.note(state, flow)
        return state, flows
