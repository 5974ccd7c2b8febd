"""Rows 7, 10 and 11: whether long streams stay as cheap as short ones, and a peer's layer."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from attendre_core.backend import Backend
from attendre_core.layer import AttendreLayer
from attendre_core.memory import DataOnlyMemory, KeyValueMemory
from attendre_core.policies import LFA, InitialScore
from attendre_core.speed.figures import Figure, Target, skipped
from attendre_core.speed.steps import (
    CHUNK,
    DIM,
    HEADS,
    Running,
    layer_of,
    random_array,
)
from attendre_core.speed.timing import Ratio, of_pairs, ratio, seconds

__all__ = ["encoding_rows", "flat_rows", "peer_rows"]


def resident() -> int:
    """Return the resident bytes of this process; on systems other than Linux, the peak so far."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * 4096
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def flat_rows(backend: Backend, tokens: int, repeats: int) -> Iterator[Figure]:
    """Measure row 7: time per chunk and resident memory, late in a stream against early.

    The stream is copied at token 10,000, and at the end both continue in alternation, because the
    speed of the machine may change in the minutes between.
    """
    run = Running(backend, layer_of(512, None)).filled()
    early, first = run, resident()
    for step in range(len(run.chunks), tokens // CHUNK):
        run()
        if step == 80:
            early = run.copied()
        elif step == 180:
            first = resident()
    held = resident() / first
    yield Figure(
        7, f"{backend.name}: time per chunk at token {tokens:,} ÷ at token 10,000",
        Target("at most", 1.05), ratio(run, early, repeats=repeats),
    )  # fmt: skip
    yield Figure(
        7, f"{backend.name}: resident memory at token {tokens:,} ÷ at token 23,000",
        Target("at most", 1.01), Ratio(held, held, held, 1),
    )  # fmt: skip


def encoding_rows(backend: Backend, references: Any, tokens: int) -> Iterator[Figure]:
    """Measure row 11: the time of reading in both directions grows linearly with the length."""
    memory = KeyValueMemory(512, LFA(initial=InitialScore(0.0)))
    run = Running(backend, AttendreLayer(memory, DataOnlyMemory(256))).filled()
    short = tokens // 8
    pairs, first = [], 0
    for _ in range(7 if tokens > 16_384 else 3):
        brief = seconds(run, short // CHUNK)
        first = first or resident()
        pairs.append((seconds(run, tokens // CHUNK) / 8, brief))
    held = resident() / first
    brief = min(brief for _, brief in pairs) / short
    notes = []
    for length in (4096, 8192, 16384) if tokens > 16384 else (4096,):
        arrays = [random_array(backend, i, 1, HEADS, length, DIM) for i in range(3)]
        full = seconds(partial(references.fused_attention, *arrays)) / length
        notes.append(f"{full / brief:.1f} at {length:,}")
    yield Figure(
        11, f"{backend.name}: reading both ways, M=512, N=256: time per token at {tokens:,} ÷ at "
        f"{short:,}", Target("at most", 1.1), of_pairs(pairs),
        f"full attention ÷ ours, time per token: {', '.join(notes)}",
    )  # fmt: skip
    yield Figure(
        11, f"{backend.name}: reading both ways: resident memory after {tokens:,} ÷ after "
        f"{short:,}", Target("at most", 1.01), Ratio(held, held, held, 1),
    )  # fmt: skip


def peer_rows(backend: Backend, repeats: int) -> Iterator[Figure]:
    """Measure row 10: a memory layer of memorizing-transformers-pytorch against ours."""
    name = "torch: memorizing-transformers-pytorch's memory layer ÷ our layer, M=2048, K=32"
    target = Target("at least", 3.0)
    try:
        from attendre_core.speed.torch_peers import memorizing_layers
    except ImportError as error:
        how = "pip install --no-deps memorizing-transformers-pytorch faiss-cpu einops einops-exts"
        yield skipped(10, name, target, f"{error.name} is not installed: {how}")
        return
    theirs, ours = memorizing_layers(size=2048, top_k=32, heads=HEADS, dim=DIM, seq=CHUNK)
    yield Figure(10, name, target, ratio(theirs, ours, repeats=repeats))
