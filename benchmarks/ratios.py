"""Ratios of one step against another, measured in turns in one process.

Usage: python benchmarks/ratios.py [--backend numpy torch jax] [--repeats 15] [--json]

Every figure is a median of ratios of neighbouring runs, with the quartiles. What is counted is the
processor time of this process, because on a shared machine a neighbour takes seconds away but adds
little work. B=1, H=8, D=64, S=128, float32.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import attendre_core as at
from attendre_core.ops.attention import logits_of
from attendre_core.positions import Encoded

HEADS, DIM, CHUNK = 8, 64, 128


@dataclass(frozen=True)
class DenseRoPE(at.RoPE):
    """RoPE by matrix product, softmax and matrix product, even where a library fuses them."""

    def encode(self, query: Any, key: Any, pairing: Any, params: Any = None) -> Encoded:
        """Multiply here, so that nobody can fuse it."""
        encoded = super().encode(query, key, pairing, params)
        return encoded._replace(logits=logits_of(encoded.query, encoded.key))


def filled(backend: at.Backend, memory: at.KeyValueMemory) -> Any:
    """Return a full state whose slots are in no particular order."""
    rng = np.random.default_rng(0)
    key = rng.standard_normal((1, memory.size, HEADS, DIM), dtype=np.float32)
    position = rng.permutation(memory.size).astype(np.int32)[None]
    state = memory.init(batch=1, heads=HEADS, head_dim=DIM, xp=backend)
    key = backend.from_numpy(key)
    return memory.insert(state, key, key, backend.from_numpy(position))[0]


def attending(
    backend: at.Backend,
    size: int,
    encoding: at.Encoding | None = None,
    top_k: int | None = None,
    retrieval: Any = "threshold",
) -> Callable[[], Any]:
    """Return a function that lets one chunk attend to a full memory."""
    memory = at.KeyValueMemory(size, retrieval=retrieval)
    state = filled(backend, memory)
    rng = np.random.default_rng(1)
    query = backend.from_numpy(rng.standard_normal((1, CHUNK, HEADS, DIM), dtype=np.float32))
    at_end = backend.from_numpy(np.arange(size, size + CHUNK, dtype=np.int32)[None])

    def attend(state: Any, query: Any, position: Any) -> Any:
        return memory.attend(state, query, position, top_k=top_k, encoding=encoding)[1]

    run = backend.compile(attend) if backend.name == "jax" else attend

    def once() -> None:
        output = run(state, query, at_end)
        if hasattr(output, "block_until_ready"):
            output.block_until_ready()

    return once


def ratio(one: Callable[[], Any], other: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Time two functions in turns and return the quartiles of one over the other."""
    found = []
    for number in range(repeats + 2):
        times = []
        for function in (one, other):
            start = time.process_time()
            function()
            times.append(time.process_time() - start)
        if number >= 2:
            found.append(times[0] / times[1])
    low, middle, high = statistics.quantiles(found, n=4)
    return {"median": middle, "low": low, "high": high}


def measure(backend: at.Backend, repeats: int, only: str = "") -> dict[str, dict[str, float]]:
    """Return all ratios of one backend, or those whose name contains some words."""
    references = {
        "RoPE": attending(backend, 2048, at.RoPE()),
        "dense RoPE": attending(backend, 2048, DenseRoPE()),
    }
    bands = {"all near": 4096, "half of it far": 1024, "all far": 64}
    rows = {
        f"LM-Infinite / {name}, M=2048, {how}": (
            attending(backend, 2048, at.LMInfinite(n_local)),
            reference,
        )
        for name, reference in references.items()
        for how, n_local in bands.items()
    }
    for size in (512, 2048):
        rows[f"gather / threshold, M={size}, K=128"] = (
            attending(backend, size, top_k=128, retrieval="gather"),
            attending(backend, size, top_k=128),
        )
        rows[f"top 128 / no top K, M={size}"] = (
            attending(backend, size, top_k=128),
            attending(backend, size),
        )
    return {name: ratio(*pair, repeats) for name, pair in rows.items() if only in name}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=["numpy", "torch", "jax"])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--only", default="", help="measure only rows with these words")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = {}
    for name in arguments.backend:
        try:
            backend = at.backend(name)
        except at.ConfigError as error:
            print(f"skipped {name}: {error}", file=sys.stderr)
            continue
        results[name] = measure(backend, arguments.repeats, arguments.only)
        if not arguments.json:
            for row, figures in results[name].items():
                spread = f"({figures['low']:.2f} to {figures['high']:.2f})"
                print(f"{name:6} {row:52} {figures['median']:6.2f} {spread}", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
