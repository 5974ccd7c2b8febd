"""An observer of a stream: who enters, who goes, what the last query finds."""

from __future__ import annotations

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
    """Notes the lives of the positions of one row, 9 bytes per layer and token.

    It is an `attendre_core.layer.Observer`: ``model.stream(observer=recorder)``.

    Parameters
    ----------
    length
        Tokens of the text.
    layers
        Which layers to note.
    """

    traces = True

    def __init__(self, length: int, layers: tuple[int, ...]) -> None:
        self.length = length
        self.step = -1
        self._lives = {number: _Lives(length) for number in layers}
        self._below = np.inf

    def reads(self, number: int, layer: AttendreLayer, block: Block, flow: Flow) -> None:
        """Count the steps, and remember the query of the last token when it comes to a layer.

        A pass through the stack is a step. At the end of the input the waiting queries of a layer
        are let out and go through the layers above it, so a pass need not begin at the lowest
        layer.
        """
        if number <= self._below:
            self.step += 1
        self._below = number
        place = self._last_in(number, flow)
        if place is not None:
            query = block.project(flow.x, flow.position)[0]
            self._lives[number].query = tuple(
                array[:1, place : place + 1, ...] for array in (query, flow.position, flow.valid)
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
        """Note what a layer took in and let go, and what the query of the last token met.

        The keys are those that it met: attending changes the scores and nothing else.
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
        """Return what was noted."""
        return tuple(
            LayerTrace(
                number, lives.size, lives.born, lives.gone, lives.reason, self.step + 1,
                lives.attended,
            )
            for number, lives in self._lives.items()
        )  # fmt: skip

    def _last_in(self, number: int, flow: Flow) -> int | None:
        """Return the place of the last token in a chunk; None where it is not."""
        if number not in self._lives:
            return None
        to_numpy = backend_of(flow.position).to_numpy
        last = np.asarray(to_numpy(flow.position))[0] == self.length - 1
        found = np.flatnonzero(last & np.asarray(to_numpy(flow.valid))[0])
        return int(found[0]) if found.size else None


class _Lives:
    """When each position of a layer came and went."""

    def __init__(self, length: int) -> None:
        self.born = np.full(length, np.iinfo(np.int32).max, dtype=np.int32)
        self.gone = np.full(length, -1, dtype=np.int32)
        self.reason = np.zeros(length, dtype=np.int8)
        self.size = 0
        self.query: tuple[Array, ...] = ()
        self.attended: Attended | None = None
        #: Heads that let a position go, with eviction per head.
        self._without: NDArray[np.int32] | None = None

    def note(self, step: int, trace: StepTrace) -> None:
        inserted, evicted, reason = (
            np.asarray(backend_of(array).to_numpy(array))[0]
            for array in (trace.inserted, trace.evicted, trace.reason)
        )
        self.born[inserted[inserted >= 0]] = step
        left = evicted >= 0
        if evicted.ndim == 2:
            if self._without is None:
                self._without = np.zeros(self.born.size, dtype=np.int32)
            np.add.at(self._without, evicted[left], 1)
            left &= self._without[evicted] == len(evicted)
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
    # In NumPy: one query is not worth compiling for.
    kv, query, position, valid, params = tree_map(_in_numpy, (kv, query, position, valid, params))
    _, found = layer.kv_memory.retrieve(
        kv, query, position, valid, layer.top_k, causal=layer.causal, encoding=layer.encoding,
        encoding_params=params,
    )  # fmt: skip
    place, seen = found.position[0, 0], found.valid[0, 0]
    logits = np.where(seen, found.similarity[0, 0].astype(np.float64), -np.inf)
    top = logits.max(axis=-1, keepdims=True, initial=-1e30)
    weights = np.where(seen, np.exp(logits - top), 0.0)
    weights /= np.maximum(weights.sum(axis=-1, keepdims=True), 1e-30)
    # Heads list entries in their own order, the best first.
    union = np.unique(place[seen])
    dense = np.zeros((len(place), union.size), dtype=np.float32)
    head, slot = np.nonzero(seen)
    dense[head, np.searchsorted(union, place[head, slot])] = weights[head, slot]
    return Attended(step, union.astype(np.int32), dense)


def _in_numpy(array: Array) -> NDArray[Any]:
    """Copy to NumPy; half precision, of which NumPy has not all kinds, becomes float32."""
    found = backend_of(array)
    if found.xp.isdtype(array.dtype, "real floating"):
        array = found.xp.astype(array, found.xp.float32)
    return np.array(found.to_numpy(array))
