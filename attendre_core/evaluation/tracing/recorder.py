"""A model that is recorded while it reads: who enters, who goes, what the last query finds."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import Array, backend_of
from attendre_core.evaluation.tracing.record import Attended, LayerTrace
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import Block, Flow
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.state import KeyValueState
from attendre_core.presets import MemoryConfig
from attendre_core.tree import tree_map
from attendre_core.zoo.model import Model
from attendre_core.zoo.reading import Reader
from attendre_core.zoo.stacks import ModelStack

__all__ = ["Recorder", "TracedModel"]


class Recorder:
    """Notes the lives of the positions of one row, 9 bytes a layer and token.

    Parameters
    ----------
    length
        Tokens of the text.
    layers
        Which layers to note.
    """

    def __init__(self, length: int, layers: tuple[int, ...]) -> None:
        self.length = length
        self.step = -1
        self._lives = {number: _Lives(length) for number in layers}
        self._below = np.inf

    def enter(self, number: int) -> None:
        """Say that a layer is about to read; a pass through the stack is a step.

        At the end of the input the waiting queries of a layer are let out and go through the
        layers above it, so a pass need not begin at the lowest layer.
        """
        if number <= self._below:
            self.step += 1
        self._below = number

    def note(self, number: int, layer: AttendreLayer, trace: StepTrace | None) -> None:
        """Note what a layer took in and let go."""
        if number in self._lives and trace is not None:
            self._lives[number].size = layer.kv_memory.size
            self._lives[number].note(self.step, trace)

    def ask(self, number: int, block: Block, flow: Flow) -> None:
        """Remember the query of the last token when it comes to a layer."""
        place = self._last_in(number, flow)
        if place is not None:
            query = block.project(flow.x, flow.position)[0]
            self._lives[number].query = tuple(
                array[:1, place : place + 1, ...] for array in (query, flow.position, flow.valid)
            )

    def answer(
        self, number: int, layer: AttendreLayer, block: Block, state: LayerState, flow: Flow
    ) -> None:
        """Note what the query of the last token attended to, once it has.

        The keys are those that it met: attending changes the scores and nothing else.
        """
        if self._last_in(number, flow) is None:
            return
        lives = self._lives[number]
        query, position, valid = lives.query
        params = getattr(block, "encoding_params", None)
        lives.attended = _attended(self.step, layer, state.kv, query, position, valid, params)

    def traces(self) -> tuple[LayerTrace, ...]:
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


class TracedModel(Model):
    """The same model, parameters shared, which tells a `Recorder` what its layers do.

    Parameters
    ----------
    model, memory
        What reads, with which memories.
    recorder
        Fits the text that will be read, by a stream of one row.
    """

    def __init__(self, model: Model, memory: MemoryConfig, recorder: Recorder) -> None:
        super().__init__(
            model.architecture, model.params, memory=memory, library=model.library,
            dtype=model.dtype, tokenizer=model.tokenizer, attention=model.attention,
            end=model.end,
        )  # fmt: skip
        self.recorder = recorder

    def reader(self) -> Reader:
        """Return the reader, recorded."""
        reader = _TracedReader(
            self.reading_part, self.reading_params, cast(MemoryConfig, self.memory), self.library,
            self.dtype, causal=self.causal,
        )  # fmt: skip
        reader.recorder = self.recorder
        return reader


class _TracedReader(Reader):
    recorder: Recorder

    def stack(self, length: int) -> ModelStack:
        plain = super().stack(length)
        layers = tuple(replace(layer, trace=True) for layer in plain.layers)
        return _TracedStack(layers, plain.library, self.recorder)


@dataclass(frozen=True)
class _TracedStack(ModelStack):
    recorder: Any = field(default=None, compare=False, repr=False)

    def step_layer(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        self.recorder.enter(number)
        self.recorder.ask(number, block, flow)
        state, flow, trace = super().step_layer(number, state, block, flow, donate)
        self.recorder.note(number, self.layers[number], trace)
        self.recorder.answer(number, self.layers[number], block, state, flow)
        return state, flow, trace

    def empty_layer(
        self, number: int, state: LayerState, block: Block, length: int
    ) -> tuple[LayerState, list[Flow]]:
        state, flows = super().empty_layer(number, state, block, length)
        for flow in flows:
            self.recorder.answer(number, self.layers[number], block, state, flow)
        return state, flows
