"""A stream with a few important entries hidden in noise, and what becomes of each entry."""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attendre_core.backend import Backend
from attendre_core.memory import KeyValueMemory

__all__ = ["Fate", "Outcome", "PlantedStream", "plant", "stream_through"]

#: How strongly planted keys and all queries share one direction; the noise has length 1 per axis.
_STRENGTH = 5.0


class Fate(IntEnum):
    """What became of one entry of the stream."""

    REFUSED = 0  #: handed back on arrival, before it ever belonged to the memory
    EVICTED = 1  #: was in the memory, and was displaced later
    KEPT = 2  #: in the memory at the end


class PlantedStream(NamedTuple):
    """Keys, values and queries ``(1, length, heads, head_dim)`` and the planted positions."""

    key: NDArray[np.float32]
    value: NDArray[np.float32]
    query: NDArray[np.float32]
    planted: tuple[int, ...]


class Outcome(NamedTuple):
    """What a memory made of a stream.

    Attributes
    ----------
    fate
        A `Fate` for every position.
    admitted_share
        The memory's own figure: of all entries that had to go, the share that were old ones.
    """

    fate: NDArray[np.int8]
    admitted_share: float


def plant(
    length: int, *, seed: int, planted: int = 4, heads: int = 2, head_dim: int = 16
) -> PlantedStream:
    """Make noise with ``planted`` important keys in its first half.

    Every query, from the first to the last, has a part that points at the planted keys: this is
    the question that the whole input is read for.
    """
    rng = np.random.default_rng(seed)
    shape = (1, length, heads, head_dim)
    key, value, query = (rng.standard_normal(shape, dtype=np.float32) for _ in range(3))
    topic = rng.standard_normal((heads, head_dim), dtype=np.float32)
    topic *= _STRENGTH / np.linalg.norm(topic, axis=-1, keepdims=True)
    half = length // 2
    edges = [half * part // planted for part in range(planted + 1)]
    positions = tuple(int(rng.integers(low, high)) for low, high in pairwise(edges))
    key[0, list(positions)] += topic
    query += topic
    return PlantedStream(key, value, query, positions)


def stream_through(
    memory: KeyValueMemory,
    stream: PlantedStream,
    *,
    chunk: int,
    top_k: int | None,
    on: Backend,
    compiled: bool = False,
) -> Outcome:
    """Feed a stream to a memory, chunk by chunk, and note the fate of every entry."""
    length, heads, head_dim = stream.key.shape[1:]
    fate = np.full(length, Fate.KEPT, dtype=np.int8)
    state = memory.init(1, heads, head_dim, xp=on, chunk=chunk)

    def step(state: Any, key: Any, value: Any, query: Any, position: Any) -> Any:
        state, evicted = memory.insert(state, key, value, position=position)
        state, _ = memory.attend(state, query, position=position, top_k=top_k)
        return state, evicted

    def note(evicted: Any, offered: int) -> None:
        """Mark what was handed back; entries from ``offered`` on were never admitted."""
        gone = on.to_numpy(evicted.position)[on.to_numpy(evicted.valid)]
        fate[gone] = np.where(gone >= offered, Fate.REFUSED, Fate.EVICTED)

    # With present="visible" a chunk competes only when the next one arrives.
    late = memory.present == "visible"
    advance = on.compile(step) if compiled else step
    numbers = np.arange(length, dtype=np.int32)[None]
    for start in range(0, length, chunk):
        arrays = (stream.key, stream.value, stream.query, numbers)
        part = [on.from_numpy(array[:, start : start + chunk]) for array in arrays]
        state, evicted = advance(state, *part)
        note(evicted, offered=start - chunk if late else start)
    if late:
        state, evicted = memory.settle(state)
        note(evicted, offered=start)
    return Outcome(fate, float(on.to_numpy(memory.admitted_share(state))[0]))
