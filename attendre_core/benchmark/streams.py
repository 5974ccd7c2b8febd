"""Rows 7, 10 and 11: long streams cost the same to the end, and peers side by side."""

from __future__ import annotations

import resource
import statistics
import sys
import time
from collections.abc import Iterator

from attendre_core.backend import Backend
from attendre_core.benchmark.figures import Figure, Target
from attendre_core.benchmark.steps import (
    CHUNK,
    DIM,
    HEADS,
    Running,
    layer_of,
    random_array,
    skipped,
)
from attendre_core.benchmark.timing import Ratio, ratio
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.memory.data_only import DataOnlyMemory
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.policies import LFA, InitialScore

__all__ = ["encoding_rows", "flat_rows", "peer_rows"]


def resident() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def flat_rows(backend: Backend, tokens: int) -> Iterator[Figure]:
    """Measure row 7: time a chunk late in a stream against early, and the memory likewise.

    Early and late chunks cannot run in turns, so a fixed piece of other work runs beside every
    chunk and its time divides that of the chunk.
    """
    run = Running(backend, layer_of(512, None))
    ruler = random_array(backend, 3, 512, 512)
    early: list[float] = []
    late: list[float] = []
    first = resident()
    steps = tokens // CHUNK
    for step in range(steps):
        watched = 60 <= step < 140 or step >= steps - 80
        start = time.perf_counter()
        run()
        middle = time.perf_counter()
        if watched:
            _ = ruler @ ruler
            share = (middle - start) / (time.perf_counter() - middle)
            (late if step >= steps - 80 else early).append(share)
        if step == 140:
            first = resident()
    value = statistics.median(late) / statistics.median(early)
    name = f"{backend.name}: time a chunk at token {tokens:,} ÷ at token 10,000"
    yield Figure(7, name, Target("at most", 1.05), Ratio(value, value, value, len(late)))
    held = resident() / first
    yield Figure(
        7, f"{backend.name}: resident memory at token {tokens:,} ÷ at token 10,000",
        Target("at most", 1.01), Ratio(held, held, held, 1),
    )  # fmt: skip


def encoding_rows(backend: Backend, tokens: int) -> Iterator[Figure]:
    """Measure row 11: reading in both directions takes time in proportion to the length."""

    def seconds(length: int) -> float:
        memory = KeyValueMemory(512, LFA(initial=InitialScore(0.0)))
        run = Running(backend, AttendreLayer(memory, DataOnlyMemory(256))).filled()
        start = time.perf_counter()
        for _ in range(length // CHUNK):
            run()
        return time.perf_counter() - start

    short = tokens // 8
    found = []
    for _ in range(3):
        found.append(seconds(tokens) / seconds(short) / 8)
    low, middle, high = sorted(found)
    yield Figure(
        11, f"{backend.name}: bidirectional reading, time a token at {tokens:,} ÷ at {short:,}",
        Target("at most", 1.1), Ratio(middle, low, high, 3),
    )  # fmt: skip


def peer_rows(backend: Backend, repeats: int) -> Iterator[Figure]:
    """Measure row 10: a memory layer of memorizing-transformers-pytorch against ours."""
    name = "torch: memorizing-transformers-pytorch's memory layer ÷ our layer, M=2048, K=32"
    target = Target("at least", 3.0)
    try:
        from attendre_torch.peers import memorizing_layers
    except ImportError as error:
        yield skipped(10, name, target, f"needs pip install {error.name}")
        return
    theirs, ours = memorizing_layers(size=2048, top_k=32, heads=HEADS, dim=DIM, seq=CHUNK)
    yield Figure(10, name, target, ratio(theirs, ours, repeats=repeats))
