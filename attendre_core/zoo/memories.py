"""Which memory every layer of a part reads through."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.stack import Stack
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import FIFO
from attendre_core.positions.base import Encoding
from attendre_core.positions.in_cache import InCache
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.rope import RoPE
from attendre_core.positions.window import Window
from attendre_core.presets import MemoryConfig
from attendre_core.zoo.architectures.base import Part
from attendre_core.zoo.blocks import model_stack

__all__ = ["encoding_of", "full_stack", "is_far", "memory_stack"]


def is_far(part: Part, length: int) -> bool:
    """Whether inputs of this length are longer than those a part was trained on."""
    return part.context is not None and length > part.context


@lru_cache(maxsize=64)
def memory_stack(
    part: Part, memory: MemoryConfig, library: str, *, causal: bool, far: bool
) -> Stack:
    """Return the layers of a part over memories.

    What is outside of a layer's sliding window is never seen again, so such a layer gets a
    first-in-first-out memory, no larger than the window, N and the chunk need. It is exact,
    however long the input, unless M is smaller than that: then a query sees what both its window
    and the newest M entries hold; or unless a layer looks ahead and N is less than the window
    reaches: then it misses what was not read yet. A policy for this very layer
    (`MemoryConfig.layer_policies`) is respected.

    Parameters
    ----------
    far
        The input may be longer than the part was trained on; see `is_far`.
    """
    layers = (_memory_layer(part, memory, i, causal, far) for i in range(part.layers))
    return model_stack(tuple(layers), library)


def _memory_layer(
    part: Part, memory: MemoryConfig, number: int, causal: bool, far: bool
) -> AttendreLayer:
    kv, top_k = memory.kv_memory(number), memory.top_k
    window = part.window(number)
    if window is not None and number not in dict(memory.layer_policies):
        # The oldest query of a chunk waits for N positions and then looks `window` back. A flush
        # sends all N of the layer below as one chunk.
        longest = max(memory.chunk, memory.q_size if memory.finish == "flush" else 0)
        reach = window - 1 + memory.q_size + longest
        size = min(reach, kv.size)
        kv = replace(
            kv, policy=FIFO(), size=size, per_head=False, protect_recent=0, sinks=0, pin=()
        )
        top_k = None if top_k is None else min(top_k, kv.size)
    return AttendreLayer(
        kv_memory=replace(kv, scale=part.scale),
        q_memory=memory.q_memory(number),
        top_k=top_k,
        causal=causal,
        encoding=encoding_of(part, number, memory.positions, far),
    )


@lru_cache(maxsize=64)
def full_stack(part: Part, size: int, library: str) -> Stack:
    """Return causal layers that hold everything up to ``size`` positions."""
    memory = KeyValueMemory(size=size, policy=FIFO(), scale=part.scale)
    layers = (
        AttendreLayer(kv_memory=memory, causal=True, encoding=encoding_of(part, i))
        for i in range(part.layers)
    )
    return model_stack(tuple(layers), library)


def encoding_of(part: Part, number: int, positions: str = "model", far: bool = False) -> Encoding:
    """Return the position scheme of a layer with its window.

    Parameters
    ----------
    positions
        As in `MemoryConfig`: what rotary positions do beyond the length a part was trained on.
    """
    encoding = part.encoding(number)
    window = part.window(number)
    if not isinstance(encoding, RoPE) or positions == "model":
        pass
    elif positions == "in-cache":
        encoding = InCache(encoding)
    elif far and part.context is not None and (window is None or window > part.context):
        encoding = LMInfinite(part.context, encoding.base, encoding)
    return encoding if window is None else Window(window, encoding)
