"""Run a memory of the core on the backend under test, NumPy in and NumPy out."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np

from attendre_conformance.memory.cases import Case
from attendre_conformance.memory.streams import Chunk, Shape, Stream
from attendre_conformance.running import compiles, to_numpy
from attendre_core import force_generic

_functions: dict[tuple[Any, ...], Callable[..., Any]] = {}


def with_own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method into a function that shares its code with no other.

    Compilers may count how often the same code was compiled, and give up after a few times.
    """

    def call(*arguments: Any) -> Any:
        return method(*arguments)

    code = call.__code__.replace(co_name=f"call_{len(_functions)}")
    return FunctionType(code, call.__globals__, code.co_name, None, call.__closure__)


def _without_kernels(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        with force_generic():
            return function(*arguments)

    return run


class Runner:
    """A memory on a backend.

    Parameters
    ----------
    backend : attendre_core.Backend
        Library to run on.
    memory : attendre_core.KeyValueMemory
        Spec.
    top_k, causal
        Given to every attend and retrieve.
    compiled : bool or None
        Whether to compile the steps; None does so where it is the faster way.
    generic : bool
        Whether to leave the kernels of the backend aside.
    """

    def __init__(
        self,
        backend: Any,
        memory: Any,
        top_k: int | None = None,
        causal: bool = False,
        compiled: bool | None = None,
        generic: bool = False,
    ) -> None:
        self.backend = backend
        self.memory = memory
        self.top_k = top_k
        self.causal = causal
        self.compiled = compiles(backend) if compiled is None else compiled
        self.generic = generic

    @classmethod
    def of(
        cls, backend: Any, case: Case, compiled: bool | None = None, generic: bool = False
    ) -> Runner:
        """Return a runner for a case."""
        return cls(backend, case.memory, case.top_k, case.causal, compiled, generic)

    def array(self, numbers: Any) -> Any:
        """Turn a NumPy array into one of the backend; None stays None."""
        return None if numbers is None else self.backend.from_numpy(np.array(numbers))

    def init(self, shape: Shape, batch: int | None = None, chunk: int | None = None) -> Any:
        """Return an empty state for a shape."""
        xp = self.backend.xp
        return self.memory.init(
            batch=shape.batch if batch is None else batch,
            heads=shape.kv_heads,
            head_dim=shape.head_dim,
            xp=xp,
            dtype=xp.float32,
            chunk=shape.seq if chunk is None else chunk,
        )

    def function(self, name: str) -> Callable[..., Any]:
        """Return a method of the memory as a function of arrays alone."""
        how = (self.compiled, self.generic, name)
        reads = (self.top_k, self.causal) if name in ("attend", "retrieve") else ()
        key = (self.backend.name, self.memory, *how, *reads)
        if key not in _functions:
            plain = getattr(self, "_" + name)
            function = self.backend.compile(with_own_code(plain)) if self.compiled else plain
            _functions[key] = _without_kernels(function) if self.generic else function
        return _functions[key]

    def _insert(
        self, state: Any, key: Any, value: Any, position: Any, valid: Any, more: Any
    ) -> Any:
        return self.memory.insert(state, key, value, position=position, valid=valid, **more)

    def _insert_donated(
        self, state: Any, key: Any, value: Any, position: Any, valid: Any, more: Any
    ) -> Any:
        return self._insert(state, key, value, position, valid, {**more, "donate": True})

    def _settle(self, state: Any) -> Any:
        return self.memory.settle(state)

    def _reset(self, state: Any, rows: Any) -> Any:
        return self.memory.reset(state, rows)

    def _reorder(self, state: Any, index: Any) -> Any:
        return self.memory.reorder(state, index)

    def _attend(self, state: Any, query: Any, position: Any, valid: Any) -> Any:
        return self.memory.attend(
            state, query, position=position, valid=valid, top_k=self.top_k, causal=self.causal
        )

    def _retrieve(self, state: Any, query: Any, position: Any, valid: Any) -> Any:
        return self.memory.retrieve(
            state, query, position=position, valid=valid, top_k=self.top_k, causal=self.causal
        )

    def insert(self, state: Any, chunk: Chunk, donate: bool = False) -> Any:
        """Insert a chunk: (state, evicted), arrays of the backend."""
        more = {
            name: self.array(getattr(chunk, name))
            for name in ("pinned", "score")
            if getattr(chunk, name) is not None
        }
        entry = (self.array(x) for x in (chunk.key, chunk.value, chunk.position, chunk.valid))
        return self.function("insert_donated" if donate else "insert")(state, *entry, more)

    def attend(self, state: Any, chunk: Chunk) -> Any:
        """Attend with the queries of a chunk: (state, output)."""
        query = (chunk.query, chunk.query_position, chunk.query_valid)
        return self.function("attend")(state, *(self.array(x) for x in query))

    def retrieve(self, state: Any, chunk: Chunk) -> Any:
        """Retrieve with the queries of a chunk: (state, retrieved)."""
        query = (chunk.query, chunk.query_position, chunk.query_valid)
        return self.function("retrieve")(state, *(self.array(x) for x in query))

    def settle(self, state: Any) -> Any:
        """Let the present chunk compete: (state, evicted)."""
        return self.function("settle")(state)

    def reset(self, state: Any, rows: Any) -> Any:
        """Empty the rows whose flag is True."""
        return self.function("reset")(state, self.array(np.asarray(rows, dtype=bool)))

    def reorder(self, state: Any, index: Any) -> Any:
        """Take rows by index."""
        return self.function("reorder")(state, self.array(np.asarray(index, dtype=np.int32)))

    def step(self, state: Any, chunk: Chunk) -> Any:
        """Insert, then attend: (state, evicted, output)."""
        state, evicted = self.insert(state, chunk)
        state, output = self.attend(state, chunk)
        return state, evicted, output

    def run(self, stream: Stream, state: Any = None) -> tuple[Any, list[Any], list[Any]]:
        """Run a whole stream: (state, evicted of every step, output of every step), in NumPy."""
        state = self.init(stream.shape) if state is None else state
        evicted, outputs = [], []
        for chunk in stream.chunks:
            state, out, output = self.step(state, chunk)
            evicted.append(self.numpy(out))
            outputs.append(self.numpy(output))
        return self.numpy(state), evicted, outputs

    def numpy(self, tree: Any) -> Any:
        """Turn arrays of the backend into NumPy arrays."""
        return to_numpy(self.backend, tree)


def kept(state: Any) -> list[Any]:
    """Positions of the stored entries, sorted: per row, or per row and head."""
    position, valid = np.asarray(state.position), np.asarray(state.valid)
    rows = position.reshape((-1, position.shape[-1]))
    pairs = zip(rows, valid.reshape(rows.shape), strict=True)
    found = [sorted(int(p) for p, ok in zip(*row, strict=True) if ok) for row in pairs]
    if position.ndim == 2:
        return found
    heads = position.shape[1]
    return [found[b * heads : (b + 1) * heads] for b in range(position.shape[0])]
