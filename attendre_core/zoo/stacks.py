"""The layers of a model: blocks around attention, memories inside, compiled layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from attendre_core.backend import Array, Backend, backend
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import LayerState
from attendre_core.layer.stack import Block, Flow, Stack
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import FIFO
from attendre_core.positions.base import Encoding
from attendre_core.positions.in_cache import InCache
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.rope import RoPE
from attendre_core.positions.window import Window
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architecture import Cross, Params, Part

__all__ = [
    "ModelBlock",
    "ModelStack",
    "blocks_of",
    "compiled",
    "full_stack",
    "memory_stack",
    "runs_eagerly",
]


@dataclass(frozen=True, eq=False)
class ModelBlock:
    """One layer of a part with its parameters: what `Stack` calls a block.

    Attributes
    ----------
    cross
        Keys and values of the encoder's output, for a decoder layer.
    """

    part: Part
    params: Params
    cross: Cross | None = None

    @property
    def encoding_params(self) -> Any:
        """Learned arrays of the position scheme."""
        return self.part.encoding_params(self.params)

    def project(self, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value."""
        return self.part.project(self.params, x, position)

    def finish(self, attended: Array, carry: Array) -> Array:
        """Return the output of the layer."""
        return self.part.finish(self.params, attended, carry, self.cross)


def blocks_of(
    part: Part, params: Params, crosses: list[Cross] | None = None
) -> tuple[ModelBlock, ...]:
    """Return the blocks of all layers."""
    layers = params["layers"]
    each = [None] * len(layers) if crosses is None else crosses
    return tuple(ModelBlock(part, p, c) for p, c in zip(layers, each, strict=True))


@dataclass(frozen=True)
class ModelStack(Stack):
    """A stack whose layers run compiled, one program for all layers of a kind.

    Attributes
    ----------
    library
        Name of the backend; one that does not compile runs the same functions as they are.
    """

    library: str = field(default="numpy")

    def step_layer(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        """Send a chunk through one layer."""
        if not isinstance(block, ModelBlock):
            return super().step_layer(number, state, block, flow, donate)
        run = _layer_program(self.library, self.layers[number], block.part, donate)
        result: tuple[LayerState, Flow, StepTrace | None] = run(
            state, block.params, block.cross, flow
        )
        return result

    def empty_layer(
        self, number: int, state: LayerState, block: Block, length: int
    ) -> tuple[LayerState, list[Flow]]:
        """Let the waiting queries of one layer out."""
        if not isinstance(block, ModelBlock):
            return super().empty_layer(number, state, block, length)
        run = _emptying_program(self.library, self.layers[number], block.part, length)
        result: tuple[LayerState, list[Flow]] = run(state, block.params, block.cross)
        return result


def compiled(
    library: str, function: Callable[..., Any], donate: bool = False
) -> Callable[..., Any]:
    """Compile a function of arrays where the library starts fast enough for that to pay."""
    if runs_eagerly(library):
        return function
    return backend(library).compile(function, donate=(0,) if donate else ())


def runs_eagerly(library: str) -> bool:
    """Whether models run operation by operation, on arrays that may be written to in place.

    PyTorch compiles on request only: eager code starts at once and runs nearly as fast.
    """
    found: Backend = backend(library)
    return "compile" not in found.capabilities or found.name == "torch"


@lru_cache(maxsize=256)
def _layer_program(
    library: str, layer: AttendreLayer, part: Part, donate: bool
) -> Callable[..., Any]:
    def step(state: LayerState, params: Params, cross: Cross | None, flow: Flow) -> Any:
        return Stack((layer,)).step_layer(0, state, ModelBlock(part, params, cross), flow, donate)

    return compiled(library, step, donate)


@lru_cache(maxsize=256)
def _emptying_program(
    library: str, layer: AttendreLayer, part: Part, length: int
) -> Callable[..., Any]:
    def empty(state: LayerState, params: Params, cross: Cross | None) -> Any:
        return Stack((layer,)).empty_layer(0, state, ModelBlock(part, params, cross), length)

    return compiled(library, empty, False)


@lru_cache(maxsize=64)
def memory_stack(
    part: Part, memory: MemoryConfig, library: str, *, causal: bool, far: bool
) -> ModelStack:
    """Return the layers of a part over memories.

    What lies outside of a layer's sliding window is never seen again, so such a layer gets a
    first-in-first-out memory, no larger than the window, N and the chunk need. It is exact,
    however long the input, unless M is smaller than that: then a query sees what both its window
    and the newest M entries hold; or unless a layer looks ahead and N is less than the window
    reaches: then it misses what was not read yet. A policy for this very layer
    (`MemoryConfig.layers`) is respected.

    Parameters
    ----------
    far
        The input may be longer than the part was trained on.
    """
    return ModelStack(
        tuple(_memory_layer(part, memory, i, causal, far) for i in range(part.layers)), library
    )


def _memory_layer(
    part: Part, memory: MemoryConfig, number: int, causal: bool, far: bool
) -> AttendreLayer:
    kv, top_k = memory.kv_memory(number), memory.top_k
    window = part.window(number)
    if window is not None and number not in dict(memory.layers):
        # The oldest query of a chunk waits for N positions and then looks `window` back. A flush
        # sends all N of the layer below as one chunk.
        longest = max(memory.chunk, memory.q_size if memory.finish == "flush" else 0)
        reach = window - 1 + memory.q_size + longest
        size = min(reach, kv.size)
        kv = replace(kv, policy=FIFO(), size=size, per_head=False, protect_recent=0)
        top_k = None if top_k is None else min(top_k, kv.size)
    return AttendreLayer(
        kv_memory=replace(kv, scale=part.scale),
        q_memory=memory.q_memory(number),
        top_k=top_k,
        causal=causal,
        encoding=_encoding(part, number, memory.positions, far),
    )


@lru_cache(maxsize=64)
def full_stack(part: Part, size: int, library: str) -> ModelStack:
    """Return causal layers that hold everything up to ``size`` positions."""
    memory = KeyValueMemory(size=size, policy=FIFO(), scale=part.scale)
    layers = [
        AttendreLayer(kv_memory=memory, causal=True, encoding=_encoding(part, i, "model", False))
        for i in range(part.layers)
    ]
    return ModelStack(tuple(layers), library)


def _encoding(part: Part, number: int, positions: str, far: bool) -> Encoding:
    """Return the position scheme of a layer, fit for inputs longer than trained."""
    encoding = part.encoding(number)
    window = part.window(number)
    if not isinstance(encoding, RoPE) or positions == "model":
        pass
    elif positions == "in-cache":
        encoding = InCache(encoding)
    elif far and part.context is not None and (window is None or window > part.context):
        encoding = LMInfinite(part.context, encoding.base, encoding)
    return encoding if window is None else Window(window, encoding)
