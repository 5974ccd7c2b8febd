"""The memories that the layers of a part read through."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.stack import Stack
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import FIFO
from attendre_core.positions.base import Encoding
from attendre_core.positions.in_cache import InCache
from attendre_core.positions.lm_infinite import LMInfinite
from attendre_core.positions.rope import RoPE
from attendre_core.positions.window import Window
from attendre_core.presets import MemoryConfig, adapted
from attendre_core.tiers.spec import with_scale
from attendre_core.zoo.architectures.base import Part
from attendre_core.zoo.blocks import model_stack

__all__ = [
    "encoding_of",
    "full_attention_bytes",
    "full_stack",
    "is_far",
    "keeps_first",
    "memory_stack",
    "shape_of",
    "used_memory",
]


def is_far(part: Part, length: int) -> bool:
    """Whether inputs of this length are longer than those a part was trained on."""
    return part.context is not None and length > part.context


def shape_of(part: Part, dtype: str) -> dict[str, Any]:
    """Return the shape of a part as `MemoryConfig.nbytes` and `memory_for` take it."""
    return {
        "layers": part.layers, "kv_heads": part.kv_heads, "head_dim": part.head_dim,
        "dtype": dtype, "heads": part.heads, "carry_dim": part.dim,
        "windows": tuple(part.window(i) for i in range(part.layers)),
    }  # fmt: skip


def full_attention_bytes(part: Part, length: int, dtype: str, *, causal: bool) -> int:
    """Return the bytes of the keys and values that a part without memories holds.

    A layer with a sliding window holds what its last query can see, every other layer everything.

    Parameters
    ----------
    length
        Positions read.
    causal
        Whether positions attend only to earlier ones.
    """
    width = {"float16": 2, "bfloat16": 2, "float64": 8}.get(dtype, 4)
    entries = 0
    for window in (part.window(i) for i in range(part.layers)):
        seen = length if window is None else window if causal else 2 * window - 1
        entries += min(seen, length)
    return 2 * width * part.kv_heads * part.head_dim * entries


@lru_cache(maxsize=64)
def memory_stack(
    part: Part, memory: MemoryConfig, library: str, *, causal: bool, far: bool
) -> Stack:
    """Return the layers of a part over memories.

    A layer with a sliding window keeps all that it can still see (`MemoryConfig.kv_memory`), so it
    is exact for inputs of any length and at every M; K does not apply to it. There is one
    exception: a layer that looks ahead further than N positions misses what was not read yet. If
    positions are pinned and the model looks both ways, it also keeps what these see. A
    policy of its own (`MemoryConfig.layer_policies`) replaces all this.

    Parameters
    ----------
    far
        The input may be longer than the part was trained on; see `is_far`.
    """
    memory = used_memory(part, memory, causal=causal)
    layers = (_memory_layer(part, memory, i, causal, far) for i in range(part.layers))
    return model_stack(tuple(layers), library)


def used_memory(part: Part, memory: MemoryConfig, *, causal: bool) -> MemoryConfig:
    """Return the memories that the layers of a part use: adapted to the part, with their sizes.

    Parameters
    ----------
    causal
        Whether positions attend only to earlier ones.
    """
    encoder = getattr(part, "kind", "") == "encoder"  # the encoder of a decoder has no kind
    memory = adapted(memory, causal=causal, encoder=encoder, trained=part.context)
    return memory.for_layers([part.window(i) for i in range(part.layers)])


def _memory_layer(
    part: Part, memory: MemoryConfig, number: int, causal: bool, far: bool
) -> AttendreLayer:
    window = part.window(number)
    kv_memory = memory.kv_memory(number, window)
    if memory.pin and window is not None and not causal and not memory.governs(number, window):
        # Pinned positions may be asked again when all is read, and then need what they see.
        stop = max(stop for _, stop in memory.pin) + window - 1
        kv_memory = replace(kv_memory, size=kv_memory.size + stop, pin=((0, stop),))
    return AttendreLayer(
        kv_memory=with_scale(kv_memory, part.scale),
        q_memory=memory.q_memory(number),
        top_k=memory.top_k_of(number, window),
        causal=causal,
        encoding=encoding_of(part, number, memory.positions, far),
    )


def keeps_first(part: Part, memory: MemoryConfig | None) -> bool:
    """Whether the first token, and what it sees in layers with windows, is never evicted.

    Parameters
    ----------
    memory
        As `used_memory` returns it.
    """
    if memory is None or any(first <= 0 < stop for first, stop in memory.pin):
        return True
    if not all(memory.governs(i, part.window(i)) for i in range(part.layers)):
        return False
    return all(max(memory.sinks, memory.policy_of(i).sinks) > 0 for i in range(part.layers))


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
