"""Rows 1 to 6: a layer step, retrieval and insertion, against lower bounds of their cost.

B=1, H=8, D=64, S=128, float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np

from attendre_core.backend import Backend
from attendre_core.layer import AttendreLayer, Chunk
from attendre_core.memory import KeyValueMemory
from attendre_core.ops import grouped, logits_of
from attendre_core.ops.selection import approximate_top_k
from attendre_core.policies import LFA, LRA, InitialScore
from attendre_core.positions.none import NoPosition
from attendre_core.speed.figures import Figure, Target
from attendre_core.speed.timing import ratio
from attendre_core.tree import tree_map

__all__ = ["Variant", "gather_rows", "insertion_rows", "selecting_rows", "step_rows"]

HEADS, DIM, CHUNK, TOP_K, PASSES = 8, 64, 128, 128, 12
_MORE_CHUNKS = 64


def random_array(backend: Backend, seed: int, *shape: int) -> Any:
    """Return an array of a library with normally distributed numbers."""
    rng = np.random.default_rng(seed)
    return backend.from_numpy(rng.standard_normal(shape, dtype=np.float32))


class Running:
    """A layer that reads one chunk per call.

    The chunks are many and all different, so that hardly any entries are equal: breaking ties
    takes time, and real input has few of them.
    """

    def __init__(self, backend: Backend, layer: AttendreLayer, seq: int = CHUNK) -> None:
        self.layer, self.backend = layer, backend
        self.chunks = [
            Chunk(*(random_array(backend, 3 * n + i, 1, seq, HEADS, DIM) for i in range(3)))
            for n in range(layer.kv_memory.size // seq + _MORE_CHUNKS)
        ]
        self._steps = 0
        self.state = layer.init(batch=1, heads=HEADS, head_dim=DIM, xp=backend)
        self._step: Callable[..., Any] = self._plain

    def _plain(self, state: Any, chunk: Chunk) -> Any:
        return self.layer.step(state, chunk, donate=True)

    def compiled(self, compile_: Callable[..., Any]) -> Running:
        """Compile the step, and return self."""
        self._step = compile_(self._plain)
        return self

    def filled(self) -> Running:
        """Step until the memory is full, and return self."""
        for _ in range(self.layer.kv_memory.size // self.chunk.key.shape[1] + 2):
            self()
        return self

    def copied(self) -> Running:
        """Return a copy with a state of its own."""
        other = copy(self)
        library = self.backend
        other.state = tree_map(lambda x: library.from_numpy(library.to_numpy(x)), self.state)
        return other

    def __call__(self) -> Any:
        """Run one step."""
        self.state, out = self._step(self.state, self.chunk)
        self._steps += 1
        return out.value

    @property
    def chunk(self) -> Chunk:
        """The chunk of the next step."""
        return self.chunks[self._steps % len(self.chunks)]

    def recall(self) -> float:
        """Return the share of the top K that approximate retrieval finds for the next chunk."""
        xp = self.backend.xp
        kv = self.state.kv
        logits = logits_of(grouped(self.chunk.query, HEADS), kv.key)
        kept = approximate_top_k(logits, kv.valid[:, None, None, None, :], TOP_K, PASSES)
        share: float = float(xp.sum(xp.astype(kept, xp.float32))) / (TOP_K * HEADS * CHUNK)
        return share


def layer_of(size: int, top_k: int | None, retrieval: Any = "threshold") -> AttendreLayer:
    """Return a layer as measured in the table: LRA-sum, c = 0, no positions."""
    memory = KeyValueMemory(
        size, LRA("sum", initial=InitialScore(0.0)), retrieval=retrieval, passes=PASSES
    )
    return AttendreLayer(memory, top_k=top_k, encoding=NoPosition())


def _attention_inputs(backend: Backend, size: int = 2048) -> tuple[Any, Any, Any]:
    """Return query, key and value, (batch, heads, n, dim)."""
    shape = (1, HEADS, size, DIM)
    query = random_array(backend, 7, 1, HEADS, CHUNK, DIM)
    return query, random_array(backend, 8, *shape), random_array(backend, 9, *shape)


def _whole(backend: Backend, references: Any) -> dict[str, Running]:
    """Return steps with K=M by a word for how they run: eager and compiled, or just jitted."""
    layer = layer_of(2048, None)
    if backend.name == "jax":
        return {"": Running(backend, layer).compiled(references.compiled_step).filled()}
    compiled = Running(backend, layer).compiled(lambda _: references.compiled_layer(layer))
    return {"eager ": Running(backend, layer).filled(), "compiled ": compiled.filled()}


def step_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure a step with K=M against dense attention (rows 1, 3) and a handwritten step (4)."""
    name = backend.name
    runs = _whole(backend, references)
    attend = partial(references.fused_attention, *_attention_inputs(backend))
    number, against = (3, "jitted dense attention") if name == "jax" else (1, "bare SDPA")
    for how, whole in runs.items():
        yield Figure(
            number, f"{name}: {how}layer step, M=2048, K=M ÷ {against}", Target("at most", 1.2),
            ratio(whole, attend, repeats=repeats),
        )  # fmt: skip
    by_hand = references.HandWritten(2048, HEADS, DIM, CHUNK)
    every = next(iter(runs.values())).chunks
    for chunk in every:
        by_hand(chunk)
    chunks = cycle(every)
    for how, whole in runs.items():
        yield Figure(
            4, f"{name}: {how}layer step, M=2048, K=M ÷ the same written by hand",
            Target("at most", 1.05), ratio(whole, lambda: by_hand(next(chunks)), repeats=repeats),
        )  # fmt: skip


class Variant(NamedTuple):
    """A way in which a step with top K can run.

    Attributes
    ----------
    name
        As in the table, such as "eager step in machine code".
    context
        Returns a context manager to enter while measuring.
    compile
        Compiles a step, given the layer and the function; None runs it eagerly.
    """

    name: str
    context: Callable[[], AbstractContextManager[Any]]
    compile: Callable[[AttendreLayer, Callable[..., Any]], Callable[..., Any]] | None


def selecting_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure a step with K=128 against compiled dense attention (rows 2, 3).

    Without the Numba kernels it runs eagerly in PyTorch, where NumPy finds the threshold: compiled
    code calls `topk`, which takes twice as long, and bisection is slower still.
    """
    attend = partial(references.compiled(references.dense_attention), *_attention_inputs(backend))
    row = 3 if backend.name == "jax" else 2
    for retrieval, most in (("threshold", 1.5), ("approximate", 1.15)):
        if backend.name == "jax" and retrieval == "approximate":
            continue
        word = "exact" if retrieval == "threshold" else f"{PASSES} passes"
        for variant in references.step_variants():
            layer = layer_of(2048, TOP_K, retrieval)
            name = (
                f"{backend.name}: {variant.name}, M=2048, K=128, {word} ÷ compiled dense attention"
            )
            with variant.context():
                run = Running(backend, layer)
                if variant.compile is not None:
                    run.compiled(partial(variant.compile, layer))
                run.filled()
                note = f"recall {run.recall():.4f}" if retrieval == "approximate" else ""
                measured = ratio(run, attend, repeats=repeats)
            yield Figure(row, name, Target("at most", most), measured, note)


def gather_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure row 5: how much faster attention to the top K is by threshold than by gathering.

    Gathering is handwritten (`gathered_attention`): attention only, without a memory.
    """
    for size in (512, 2048):
        memory = layer_of(size, TOP_K).kv_memory
        query, key, value = _attention_inputs(backend, size)

        def rows(x: Any) -> Any:
            return backend.xp.permute_dims(x, (0, 2, 1, 3))

        state = memory.init(batch=1, heads=HEADS, head_dim=DIM, xp=backend)
        state, _ = memory.insert(state, rows(key), rows(value))
        gather = partial(references.gathered_attention, query, key, value, TOP_K)
        for name, context in references.attention_variants():

            def attend(state: Any, query: Any, memory: KeyValueMemory = memory) -> Any:
                return memory.attend(state, query, top_k=TOP_K)[1]

            # Eager PyTorch finds the threshold with NumPy, which is faster than compiled code.
            ours = references.compiled(attend) if backend.name == "jax" else attend
            with context():
                measured = ratio(gather, partial(ours, state, rows(query)), repeats=repeats)
            yield Figure(
                5, f"{backend.name}: gathering ÷ threshold {name}, M={size}, K=128",
                Target("at least", 4.0), measured,
            )  # fmt: skip


def insertion_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure row 6: the cost of an insertion depends on the size of the chunk, not on M."""

    def inserting(size: int, seq: int) -> Callable[[], Any]:
        memory = KeyValueMemory(size, LFA(initial=InitialScore(0.0)))
        chunk = random_array(backend, 1, 1, seq, HEADS, DIM)
        kept = [memory.init(batch=1, heads=HEADS, head_dim=DIM, xp=backend)]
        whole = random_array(backend, 2, 1, size, HEADS, DIM)
        kept[0], _ = memory.insert(kept[0], whole, whole)

        def insert(state: Any, chunk: Any) -> Any:
            return memory.insert(state, chunk, chunk, donate=True)

        run = references.compiled_step(insert) if backend.name == "jax" else insert

        def once() -> Any:
            kept[0], evicted = run(kept[0], chunk)
            return evicted.position

        return once

    small = inserting(512, CHUNK)
    for seq in (1, CHUNK):
        large = inserting(8192, seq)
        yield Figure(
            6, f"{backend.name}: insert and evict, M=8192, S={seq} ÷ M=512, S=128",
            Target("at most", 3.0), ratio(large, small, repeats=repeats),
        )  # fmt: skip
