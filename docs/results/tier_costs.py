"""What tiers cost: two of 512 against one memory of 1,024, and a million entries outside.

Run ``python docs/results/tier_costs.py torch`` (or numpy, or jax, whose steps are compiled), or
``… knn``, which needs faiss. Times are CPU times on one thread, taken in turns; keys of the million
are drawn around 2,000 centres, which an index by lists finds more easily than it would real keys.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")

import numpy as np

import attendre_core as at
from attendre_core.backend import backend

S, H, D = 128, 8, 64
MILLION, K, CENTRES = 1_000_000, 32, 2_000


class Reader:
    """A layer over full memories that reads chunk after chunk."""

    def __init__(self, memory: Any, library: str) -> None:
        found, rng = backend(library), np.random.default_rng(0)
        self.layer = at.AttendreLayer(memory, causal=True, encoding=at.RoPE())
        self.state = self.layer.init(batch=1, heads=H, head_dim=D, xp=library)

        def content() -> Any:
            return found.from_numpy(rng.standard_normal((1, S, H, D), dtype=np.float32))

        self.chunks = [at.Chunk(content(), content(), content()) for _ in range(3)]
        self.step: Any = partial(self.layer.step, donate=True)
        self.wait: Any = lambda state: state
        if library == "jax":
            import jax

            self.step = jax.jit(self.layer.step, donate_argnums=0)
            self.wait = jax.block_until_ready
        self.read(12)

    def read(self, steps: int) -> float:
        """Read some chunks; return the CPU time."""
        begin = time.process_time()
        for step in range(steps):
            self.state, _ = self.step(self.state, self.chunks[step % 3])
        self.state = self.wait(self.state)
        return time.process_time() - begin


def two_tiers(library: str) -> None:
    """Print the time of a step with 512 + 512 entries ÷ that with 1,024."""
    if library == "torch":
        import torch

        torch.set_num_threads(1)
    two = Reader(at.Tiers(at.KeyValueMemory(512), at.Tier(at.KeyValueMemory(512))), library)
    one = Reader(at.KeyValueMemory(1024), library)
    ratios = []
    for _ in range(120):
        first, second = two.read(4), one.read(4)
        fourth = one.read(4)
        ratios.append((first + two.read(4)) / (second + fourth))
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    print(f"{library}: 512 + 512 ÷ 1,024: {middle:.3f} ({low:.3f} to {high:.3f})")


def a_million() -> None:
    """Print the time per chunk of a store of a million entries, and the recall of its index."""
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((CENTRES, D), dtype=np.float32)

    def draw(count: int) -> Any:
        noise = rng.standard_normal((count, D), dtype=np.float32)
        return centres[rng.integers(0, CENTRES, count)] + np.float32(0.7) * noise

    def entries(key: Any, start: int) -> dict[str, Any]:
        count = len(key)
        place = np.arange(start, start + count, dtype=np.int32)
        number = np.ones(count, dtype=np.int32)
        return {"key": key[None], "value": key[None], "position": place, "count": number}

    keys, query = draw(MILLION), draw(S * 4).reshape(1, S, 4, D)
    real = np.ones((1, S), dtype=bool)
    found = {}
    for index in (at.FaissIndex(lists=1024, probes=16, train_at=100_000), at.ExactIndex()):
        store = at.HostStore(MILLION, index=index)
        store.open(1, 1, D, D)
        for start in range(0, MILLION, 50_000):
            store.add(0, entries(keys[start : start + 50_000], start))
        store.search(query, real, K)
        begin = time.process_time()
        found[type(index).__name__] = store.search(query, real, K).slot[0].reshape(-1, K)
        searched = time.process_time() - begin
        begin = time.process_time()
        store.add(0, entries(draw(S), MILLION))
        added = time.process_time() - begin
        name = type(index).__name__
        print(f"{name}: search {1e3 * searched:.0f} ms, add and delete {1e3 * added:.0f} ms")
        if name == "FaissIndex":
            flat_on_device(store)
    pairs = zip(found["ExactIndex"], found["FaissIndex"], strict=True)
    print(f"recall at {K}: {np.mean([len({*a} & {*b}) / K for a, b in pairs]):.3f}")


def flat_on_device(store: Any) -> None:
    """Print the bytes of all arrays of JAX with an empty store, and with a full one."""
    import jax

    held = {}
    for name, entries in (("empty", at.HostStore(MILLION)), ("full", store)):
        memory = at.Tiers(at.KeyValueMemory(512), at.HostTier(entries, top_k=K))
        layer = at.AttendreLayer(memory, causal=True)
        state = layer.init(batch=1, heads=4, kv_heads=1, head_dim=D, xp="jax")
        clock = jax.numpy.asarray(entries.clock if name == "full" else [0], dtype="int32")
        tiers = (*state.kv.tiers[:-1], state.kv.tiers[-1]._replace(clock=clock))
        state = state._replace(kv=state.kv._replace(tiers=tiers))
        one = jax.numpy.ones((1, S, 1, D))
        chunk = at.Chunk(jax.numpy.ones((1, S, 4, D)), one, one)
        times = []
        for _ in range(8):
            begin = time.process_time()
            state, _ = layer.step(state, chunk)
            times.append(time.process_time() - begin)
        held[name] = sum(array.nbytes for array in jax.live_arrays())
        print(f"{name}: {entries.lengths[0]} outside, {1e3 * np.median(times[-3:]):.0f} ms a step")
        del layer, state, chunk, one, clock, tiers, memory, _
    print(f"arrays on the device: {held['empty']} bytes, then {held['full']} bytes")


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) == 2 else ""
    if what not in ("numpy", "torch", "jax", "knn"):
        sys.exit(f"usage: python {sys.argv[0]} numpy|torch|jax|knn")
    a_million() if what == "knn" else two_tiers(what)
