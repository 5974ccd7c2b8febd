"""What a caller may do wrong with a memory, and the tools with which it is done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.running import from_numpy
from attendre_core.backend import backend as look_up

B, S, M, G, H, D = 2, 3, 5, 2, 4, 4


class Scene:
    """A memory in use on one backend, and well-formed arrays to spoil."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.xp = backend.xp
        self.memory: Any = at.KeyValueMemory(size=M, policy=at.LFA(0.0))
        self.state = self.init(self.memory)
        rng = np.random.default_rng(0)
        self.key = rng.standard_normal((B, S, G, D)).astype(np.float32)
        self.query = rng.standard_normal((B, S, H, D)).astype(np.float32)
        self.place = np.tile(np.arange(S, dtype=np.int32), (B, 1))
        self.valid = np.ones((B, S), dtype=bool)
        self.state, _ = self.memory.insert(self.state, self.a(self.key), self.a(self.key))

    def init(self, memory: Any, **options: Any) -> Any:
        """Make a state of the usual sizes."""
        sizes = {"batch": B, "heads": G, "head_dim": D, "dtype": self.xp.float32, **options}
        return memory.init(xp=self.xp, **sizes)

    def a(self, array: Any) -> Any:
        """Turn a NumPy array into one of the backend."""
        return self.backend.from_numpy(np.array(array))

    def insert(self, key: Any = None, value: Any = None, **more: Any) -> Any:
        """Insert NumPy arrays, the usual ones where none are given."""
        key = self.key if key is None else key
        value = self.key if value is None else value
        arrays = {name: self.a(x) if isinstance(x, np.ndarray) else x for name, x in more.items()}
        return self.memory.insert(self.state, self.a(key), self.a(value), **arrays)

    def attend(self, query: Any = None, **more: Any) -> Any:
        """Attend with NumPy arrays, the usual ones where none are given."""
        query = self.query if query is None else query
        arrays = {name: self.a(x) if isinstance(x, np.ndarray) else x for name, x in more.items()}
        return self.memory.attend(self.state, self.a(query), **arrays)


@dataclass(frozen=True)
class Mistake:
    """Something a caller may do wrong, and what the error must say."""

    name: str
    error: type[Exception]
    words: tuple[str, ...]
    make: Callable[[Scene], Any]


def spoiled(array: Any, number: float) -> Any:
    """Return a copy with one broken number, in entry 1 of row 1."""
    array = array.copy()
    array[(1, 1) + (0,) * (array.ndim - 2)] = number
    return array


def queue_insert(scene: Scene, **change: Any) -> Any:
    """Insert into a data-only memory, with something changed."""
    queue = at.DataOnlyMemory(size=2)
    data = (np.zeros((B, S, 3), dtype=np.float32), np.zeros((B, S), dtype=np.int32))
    state = queue.init(from_numpy(scene.backend, data))
    arguments: dict[str, Any] = {"data": data, "valid": scene.valid, **change}
    return queue.insert(
        state,
        from_numpy(scene.backend, arguments["data"]),
        valid=scene.a(arguments["valid"]),
    )


def two_libraries(scene: Scene) -> Any:
    """Pass arrays of another library than the state's."""
    name = "array_api_strict" if scene.backend.name == "numpy" else "numpy"
    try:
        other = look_up(name)
    except at.ConfigError:
        pytest.skip(f"there is no other library than {scene.backend.name} installed")
    key = other.from_numpy(scene.key)
    return scene.memory.insert(scene.state, key, key)


SHAPE, DTYPE, CONFIG, STATE, BROKEN = (
    at.ShapeError,
    at.DTypeError,
    at.ConfigError,
    at.StateError,
    at.NonFiniteError,
)
#: What is passed to these is wrong on purpose, and type checkers would say so.
Memory: Any = at.KeyValueMemory
LRA: Any = at.LRA
LFA: Any = at.LFA
INSERT, ATTEND = "KeyValueMemory.insert", "KeyValueMemory.attend"
