"""An observer of a stream that counts whether chunks find their own entries.

A Q memory lets queries wait. By the time they attend, their own keys and values may be gone,
evicted because of what older queries attended to. The share that is still there is worth a column
in every table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import backend_of
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, Flow
from attendre_core.layer.records import LayerState
from attendre_core.layer.trace import StepTrace

__all__ = ["Presence"]


class Presence:
    """Counts, for each row, queries that attended and the share of their own chunk they found.

    It is an `attendre_core.layer.Observer`: ``model.stream(observer=presence)``.

    Parameters
    ----------
    lengths
        Tokens of each row.
    chunk
        Tokens read at a time.
    """

    traces = False

    def __init__(self, lengths: list[int], chunk: int) -> None:
        self.chunk = chunk
        self._lengths = np.asarray(lengths)
        self._found = np.zeros(len(lengths))
        self._queries = np.zeros(len(lengths))

    def reads(self, number: int, layer: AttendreLayer, block: Block, flow: Flow) -> None:
        """Do nothing: it looks only afterwards."""

    def attended(
        self,
        number: int,
        layer: AttendreLayer,
        block: Block,
        state: LayerState,
        flow: Flow,
        trace: StepTrace | None,
    ) -> None:
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
