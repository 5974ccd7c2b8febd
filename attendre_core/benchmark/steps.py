"""Rows 1 to 6: one layer step, retrieval, insertion, against what cannot be done for less.

B=1, H=8, D=64, S=128, float32. The references are written in the library itself, in
``attendre_torch.references`` and ``attendre_jax.references``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attendre_core.backend import Backend
from attendre_core.benchmark.figures import Figure, Target
from attendre_core.benchmark.timing import Ratio, ratio
from attendre_core.layer.attendre import AttendreLayer, Chunk
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import LFA, LRA, InitialScore
from attendre_core.positions.none import NoPosition

__all__ = ["gather_rows", "insertion_rows", "step_rows"]

HEADS, DIM, CHUNK = 8, 64, 128


def random_array(backend: Backend, seed: int, *shape: int) -> Any:
    """Return normal numbers of a library."""
    rng = np.random.default_rng(seed)
    return backend.from_numpy(rng.standard_normal(shape, dtype=np.float32))


class Running:
    """A layer with a full memory, stepped again and again with the same chunk."""

    def __init__(self, backend: Backend, layer: AttendreLayer, seq: int = CHUNK) -> None:
        self.layer, self.backend = layer, backend
        array = (random_array(backend, i, 1, seq, HEADS, DIM) for i in range(3))
        self.chunk = Chunk(*array)
        self.state = layer.init(1, HEADS, HEADS, DIM, xp=backend)
        self._step: Callable[..., Any] = self._plain

    def _plain(self, state: Any, chunk: Chunk) -> Any:
        return self.layer.step(state, chunk, donate=True)

    def compiled(self, compile_: Callable[..., Any]) -> Running:
        """Run the step through a compiler."""
        self._step = compile_(self._plain)
        return self

    def filled(self) -> Running:
        """Step until the memory is full."""
        for _ in range(self.layer.kv_memory.size // self.chunk.key.shape[1] + 2):
            self()
        return self

    def __call__(self) -> Any:
        """Run one step."""
        self.state, out = self._step(self.state, self.chunk)
        return out.value


def layer_of(size: int, top_k: int | None, retrieval: Any = "threshold") -> AttendreLayer:
    """Return the layer that the table measures."""
    memory = KeyValueMemory(
        size, LRA("sum", initial=InitialScore(0.0)), retrieval=retrieval, passes=12
    )
    return AttendreLayer(memory, top_k=top_k, encoding=NoPosition())


def step_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure rows 1 to 4 on one library; ``references`` is its module of references."""
    name = backend.name
    shape = (1, HEADS, 2048, DIM)
    query = random_array(backend, 7, 1, HEADS, CHUNK, DIM)
    key, value = random_array(backend, 8, *shape), random_array(backend, 9, *shape)
    compile_ = references.compiled
    fused, dense = references.fused_attention, compile_(references.dense_attention)
    whole = Running(backend, layer_of(2048, None))
    if name == "jax":
        whole = whole.compiled(references.compiled_step)
        bound, against = (3, "jitted dense attention"), dense
    else:
        bound, against = (1, "bare SDPA"), fused
    whole.filled()
    yield Figure(
        bound[0], f"{name}: layer step, M=2048, K=M ÷ {bound[1]}", Target("at most", 1.2),
        ratio(whole, lambda: against(query, key, value), repeats=repeats),
    )  # fmt: skip
    for retrieval, most in (("threshold", 1.5), ("approximate", 1.15)):
        if name == "jax" and retrieval == "approximate":
            continue
        picky = Running(backend, layer_of(2048, 128, retrieval))
        picky.compiled(references.compiled_step).filled()
        word = "exact" if retrieval == "threshold" else "approximate, 12 passes"
        yield Figure(
            3 if name == "jax" else 2,
            f"{name}: layer step, M=2048, K=128, {word}, compiled ÷ compiled dense attention",
            Target("at most", most),
            ratio(picky, lambda: dense(query, key, value), repeats=repeats),
        )
    by_hand = references.HandWritten(2048, HEADS, DIM, CHUNK)
    for _ in range(2048 // CHUNK + 2):
        by_hand(whole.chunk)
    yield Figure(
        4, f"{name}: layer step, M=2048, K=M ÷ the same written by hand", Target("at most", 1.05),
        ratio(whole, lambda: by_hand(whole.chunk), repeats=repeats),
    )  # fmt: skip


def gather_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure row 5: how much faster a threshold finds the top K than gathering."""
    for size in (512, 2048):
        runs = []
        for retrieval in ("gather", "threshold"):
            run = Running(backend, layer_of(size, 128, retrieval))
            if backend.name == "jax":
                run = run.compiled(references.compiled_step)
            runs.append(run.filled())
        yield Figure(
            5, f"{backend.name}: gather ÷ threshold, M={size}, K=128", Target("at least", 4.0),
            ratio(runs[0], runs[1], repeats=repeats),
        )  # fmt: skip


def insertion_rows(backend: Backend, references: Any, repeats: int) -> Iterator[Figure]:
    """Measure row 6: inserting costs by what is inserted, not by what is held."""

    def inserting(size: int, seq: int) -> Callable[[], Any]:
        memory = KeyValueMemory(size, LFA(initial=InitialScore(0.0)))
        chunk = random_array(backend, 1, 1, seq, HEADS, DIM)
        kept = [memory.init(1, HEADS, DIM, backend)]
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


def skipped(row: int, name: str, target: Target, why: str) -> Figure:
    """Return a line for what could not be measured here."""
    no_ratio: Ratio | None = None
    return Figure(row, name, target, no_ratio, why)
