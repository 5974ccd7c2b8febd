"""An observer that records which entries arrive and leave, and what the last query attends to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import Array, backend_of
from attendre_core.evaluation.tracing.record import Attended, LayerTrace
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, Flow
from attendre_core.layer.records import LayerState
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.state import KeyValueState
from attendre_core.tree import tree_map

__all__ = ["Recorder"]


class Recorder:
    """Records when the positions of one row arrive and leave, in 9 bytes per layer and token.

    It is an `attendre_core.layer.Observer`: ``model.stream(observer=recorder)``.

    Parameters
    ----------
    length
        Tokens of the text.
    layers
        Numbers of the layers to record.
    window
        Returns the sliding window of a layer, or None.
    """

    traces = True

    def __init__(
        self,
        length: int,
        layers: tuple[int, ...],
        window: Callable[[int], int | None] = lambda number: None,
    ) -> None:
        self.length = length
        self.step = -1
        self._window = window
        self._lives = {number: _Lives(length) for number in layers}
        self._previous = np.inf

    def reads(self, number: int, layer: AttendreLayer, block: Block, flow: Flow) -> None:
        """Count the steps, and keep the query of the last token when it arrives at a layer.

        A pass through the stack is a step. At the end of the input the waiting queries of a layer
        are released and go through the layers above it, so a pass may begin at any layer: a new
        one begins when the number of the layer does not increase.
        """
        if number <= self._previous:
            self.step += 1
        self._previous = number
        index = self._last_in(number, flow)
        if index is not None:
            query = block.project(flow.x, flow.position)[0]
            self._lives[number].query = tuple(
                array[:1, index : index + 1, ...] for array in (query, flow.position, flow.valid)
            )

    def attended(
        self,
        number: int,
        layer: AttendreLayer,
        block: Block,
        state: LayerState,
        flow: Flow,
        trace: StepTrace | None,
    ) -> None:
        """Record what a layer inserted and evicted, and what the last token's query attended to.

        The state is the one after attending, which changes scores but no keys.
        """
        if number not in self._lives:
            return
        lives = self._lives[number]
        if trace is not None:
            lives.size = layer.kv_memory.size
            lives.note(self.step, trace)
        if self._last_in(number, flow) is not None:
            query, position, valid = lives.query
            params = getattr(block, "encoding_params", None)
            lives.attended = _attended(self.step, layer, state.kv, query, position, valid, params)

    def layer_traces(self) -> tuple[LayerTrace, ...]:
        """Return the records of all layers."""
        return tuple(
            LayerTrace(
                number, lives.size, lives.born, lives.gone, lives.reason, self.step + 1,
                lives.attended, self._window(number),
            )
            for number, lives in self._lives.items()
        )  # fmt: skip

    def _last_in(self, number: int, flow: Flow) -> int | None:
        """Return the index of the last token in a chunk; None if it is not in it."""
        if number not in self._lives:
            return None
        to_numpy = backend_of(flow.position).to_numpy
        last = np.asarray(to_numpy(flow.position))[0] == self.length - 1
        indices = np.flatnonzero(last & np.asarray(to_numpy(flow.valid))[0])
        return int(indices[0]) if indices.size else None


class _Lives:
    """When each position arrived in a layer's memory and left it."""

    def __init__(self, length: int) -> None:
        self.born = np.full(length, np.iinfo(np.int32).max, dtype=np.int32)
        self.gone = np.full(length, -1, dtype=np.int32)
        self.reason = np.zeros(length, dtype=np.int8)
        self.size = 0
        self.query: tuple[Array, ...] = ()
        self.attended: Attended | None = None
        #: With eviction per head: the number of heads that evicted each position.
        self._evicted_by: NDArray[np.int32] | None = None

    def note(self, step: int, trace: StepTrace) -> None:
        inserted, evicted, reason = (
            np.asarray(backend_of(array).to_numpy(array))[0]
            for array in (trace.inserted, trace.evicted, trace.reason)
        )
        self.born[inserted[inserted >= 0]] = step
        left = evicted >= 0
        if evicted.ndim == 2:
            if self._evicted_by is None:
                self._evicted_by = np.zeros(self.born.size, dtype=np.int32)
            np.add.at(self._evicted_by, evicted[left], 1)
            left &= self._evicted_by[evicted] == len(evicted)
        self.gone[evicted[left]] = step
        self.reason[evicted[left]] = reason[left]


def _attended(
    step: int,
    layer: AttendreLayer,
    kv: KeyValueState,
    query: Array,
    position: Array,
    valid: Array,
    params: Any,
) -> Attended:
    # Computed with NumPy: compiling for a single query is not worth it.
    kv, query, position, valid, params = tree_map(_in_numpy, (kv, query, position, valid, params))
    _, retrieved = layer.kv_memory.retrieve(
        kv, query, position, valid, layer.top_k, causal=layer.causal, encoding=layer.encoding,
        encoding_params=params,
    )  # fmt: skip
    place, seen = retrieved.position[0, 0], retrieved.valid[0, 0]
    logits = np.where(seen, retrieved.similarity[0, 0].astype(np.float64), -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-1e30)
    weights = np.where(seen, np.exp(logits - top), 0.0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    # Each head lists its entries in its own order, best first.
    union = np.unique(place[seen])
    dense = np.zeros((len(place), union.size), dtype=np.float32)
    head, slot = np.nonzero(seen)
    dense[head, np.searchsorted(union, place[head, slot])] = weights[head, slot]
    return Attended(step, union.astype(np.int32), dense)


def _in_numpy(array: Array) -> NDArray[Any]:
    """Copy to NumPy; floating-point arrays become float32, because NumPy has no bfloat16."""
    library = backend_of(array)
    if library.xp.isdtype(array.dtype, "real floating"):
        array = library.xp.astype(array, library.xp.float32)
    return np.array(library.to_numpy(array))
