"""An observer of a stream that measures how much of their own chunk queries still find.

A Q memory lets queries wait. By the time they attend, the keys and values of their own chunk may
have been evicted. Tables show the share that is still there.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import backend_of
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, Flow
from attendre_core.layer.records import LayerState
from attendre_core.layer.trace import StepTrace

__all__ = ["Presence"]


class Presence:
    """Measures, per row, the share of their own chunk that queries find when they attend.

    It is an `attendre_core.layer.Observer`: ``model.stream(observer=presence)``.

    Parameters
    ----------
    lengths
        Tokens of each row.
    chunk
        Tokens read per step.
    layers
        Numbers of the layers to look at; None: all.
    """

    traces = False

    def __init__(
        self, lengths: list[int], chunk: int, layers: Collection[int] | None = None
    ) -> None:
        self.chunk, self.layers = chunk, layers
        self._lengths = np.asarray(lengths)
        self._shares = np.zeros(len(lengths))
        self._queries = np.zeros(len(lengths))

    def reads(self, number: int, layer: AttendreLayer, block: Block, flow: Flow) -> None:
        """Do nothing; everything is counted in `attended`."""

    def attended(
        self,
        number: int,
        layer: AttendreLayer,
        block: Block,
        state: LayerState,
        flow: Flow,
        trace: StepTrace | None,
    ) -> None:
        """Count the stored entries of each query's chunk, right after the queries attended."""
        if self.layers is not None and number not in self.layers:
            return
        to_numpy = backend_of(flow.position).to_numpy
        position, real = np.asarray(to_numpy(flow.position)), np.asarray(to_numpy(flow.valid))
        stored = np.where(to_numpy(state.kv.valid), to_numpy(state.kv.position), -self.chunk)
        if stored.ndim == 3:  # eviction per head: count over all heads, then divide
            heads = stored.shape[1]
            stored = stored.reshape(stored.shape[0], -1)
        else:
            heads = 1
        chunk_of_query, chunk_of_entry = position // self.chunk, stored // self.chunk
        present = (chunk_of_entry[:, None, :] == chunk_of_query[:, :, None]).sum(axis=-1) / heads
        size = np.minimum(self._lengths[:, None] - chunk_of_query * self.chunk, self.chunk)
        self._shares += np.where(real, present / np.maximum(size, 1), 0.0).sum(axis=1)
        self._queries += real.sum(axis=1)

    @property
    def shares(self) -> NDArray[np.float64]:
        """(rows,): the mean share, over layers and positions; 1 for rows without queries."""
        none = self._queries == 0
        return np.where(none, 1.0, self._shares / np.where(none, 1.0, self._queries))
