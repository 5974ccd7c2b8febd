"""Streams 1,000,000 tokens through small memories and checks that nothing grows or breaks.

For each policy: from the first tenth of the stream to its end the bytes that Python holds must not
grow by more than 64 KiB and the process by more than 32 MiB, and all along the memory must be
full, without duplicates, finite, and in step with its input. Run by `nox -s soak`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
import tracemalloc

import numpy as np

import attendre_core as at
from attendre_core.memory import EvictedEntries, KeyValueState

HEADS, HEAD_DIM, SIZE, CHUNK = 2, 8, 64, 128
POLICIES = {
    "FIFO": at.FIFO(),
    "AttentionSink": at.AttentionSink(),
    "LRU": at.LRU(),
    "LFU": at.LFU(),
    "LRA-max": at.LRA(pool="max"),
    "LFA-1e-3": at.LFA(decay=1e-3),
    "LFA-0": at.LFA(decay=0.0),
}


def check(state: KeyValueState, evicted: EvictedEntries, start: int) -> None:
    """Raise when the memory is not what it must be after the chunk that began at ``start``."""
    kept = state.position[0][state.valid[0]]
    gone = evicted.position[0][evicted.valid[0]]
    problems = {
        "not full": kept.size != SIZE,
        "a position twice": np.unique(np.concatenate([kept, gone])).size != kept.size + gone.size,
        "a score is not finite": not np.isfinite(state.score).all(),
        "a position from the future": kept.max() >= start + CHUNK,
        "something lost": start > 0 and gone.size != CHUNK,
    }
    broken = [what for what, is_so in problems.items() if is_so]
    if broken:
        raise RuntimeError(f"at token {start}: {', '.join(broken)}")


def soak(policy: at.Policy, tokens: int) -> tuple[int, int]:
    """Stream ``tokens``; return the bytes Python held after a tenth of them and at the end."""
    memory = at.KeyValueMemory(size=SIZE, policy=policy)
    state = memory.init(batch=1, heads=HEADS, head_dim=HEAD_DIM)
    rng = np.random.default_rng(0)
    early = 0
    for start in range(0, tokens, CHUNK):
        shape = (3, 1, CHUNK, HEADS, HEAD_DIM)
        key, value, query = rng.standard_normal(shape, dtype=np.float32)
        position = np.arange(start, start + CHUNK, dtype=np.int32)[None]
        state, evicted = memory.insert(state, key, value, position=position)
        check(state, evicted, start)
        state, output = memory.attend(state, query, position=position, top_k=16)
        if not np.isfinite(output).all():
            raise RuntimeError(f"at token {start}: an output is not finite")
        if early == 0 and start >= tokens // 10:
            early = held()
    return early, held()


def held() -> int:
    """Return the bytes that Python holds, without what it keeps for reuse."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def peak_mib() -> float:
    """Return the largest size of this process so far."""
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def main() -> int:
    """Run all policies; return 1 when one of them grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    tokens = parser.parse_args().tokens
    tracemalloc.start()
    soak(at.LFA(), 20 * CHUNK)
    base, grew = peak_mib(), False
    for name, policy in POLICIES.items():
        begin = time.perf_counter()
        early, late = soak(policy, tokens)
        wrong = late > early + 2**16 or peak_mib() > base + 32
        grew |= wrong
        print(
            f"{name:14} {tokens:,} tokens in {time.perf_counter() - begin:5.1f} s, "
            f"{early:,} -> {late:,} bytes, peak {peak_mib():.0f} MiB{'  GREW' if wrong else ''}",
            flush=True,
        )
    return int(grew)


if __name__ == "__main__":
    sys.exit(main())
