"""Streams 10,000,000 tokens through a small memory: does anything grow, slow down or break?

LFA-1e-3 reads them on each backend, every other policy a tenth of them. A hundred times between
the first tenth of a stream and its end these are measured:

- the size of the process and the number of objects, and the slopes of straight lines through them;
- the processor time of steps on the old memory, divided by that of the same steps on one that has
  read 2,560 tokens, one after the other: the last quarter against the first is the drift of speed.

All along, the memory must be full, without duplicates, finite, and in step with its input. Fails
when that breaks, or when the lines rise by more than 32 MiB or 500 objects over the stream; the
speed is reported. Run by `nox -s soak`.
"""

from __future__ import annotations

import argparse
import gc
import resource
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import attendre_core as at
from attendre_core.backend import Backend, resolve

HEADS, HEAD_DIM, SIZE, CHUNK = 2, 8, 64, 256
MARKS, TIMED, MOST_BYTES, MOST_OBJECTS = 100, 8, 2**25, 500
POLICIES = {
    "LFA-1e-3": at.LFA(decay=1e-3),
    "FIFO": at.FIFO(),
    "AttentionSink": at.AttentionSink(),
    "LRU": at.LRU(),
    "LFU": at.LFU(),
    "LRA-max": at.LRA(pool="max"),
    "LFA-0": at.LFA(decay=0.0),
}


class Marks(NamedTuple):
    """What was measured along a stream; arrays of fixed size, so that they do not grow."""

    tokens: Any
    size: Any
    objects: Any
    slowness: Any


class Stream:
    """One memory that reads random chunks, of a backend's arrays."""

    def __init__(self, policy: at.Policy, backend: Backend) -> None:
        self.memory = at.KeyValueMemory(size=SIZE, policy=policy)
        self.backend, self.rng, self.read = backend, np.random.default_rng(0), 0
        self.state = self.memory.init(batch=1, heads=HEADS, head_dim=HEAD_DIM, xp=backend)

    def chunk(self) -> list[Any]:
        """Draw the key, value and query of a chunk."""
        shape = (3, 1, CHUNK, HEADS, HEAD_DIM)
        drawn = self.rng.standard_normal(shape, dtype=np.float32)
        return [self.backend.from_numpy(each, device=None) for each in drawn]

    def step(self, chunk: list[Any]) -> tuple[Any, Any]:
        """Insert a chunk and attend; return what was evicted and the output."""
        key, value, query = chunk
        where = np.arange(self.read, self.read + CHUNK, dtype=np.int32)[None]
        position = self.backend.from_numpy(where, device=None)
        self.state, evicted = self.memory.insert(self.state, key, value, position=position)
        self.state, output = self.memory.attend(self.state, query, position=position, top_k=16)
        self.read += CHUNK
        return evicted, output

    def check(self, evicted: Any, output: Any) -> None:
        """Raise when the memory is not what it must be after a step."""

        def real(of: Any) -> Any:
            valid = self.backend.to_numpy(of.valid)[0]
            return self.backend.to_numpy(of.position)[0][valid]

        kept, gone = real(self.state), real(evicted)
        problems = {
            "not full": kept.size != SIZE,
            "a position twice": np.unique(np.r_[kept, gone]).size != kept.size + gone.size,
            "a score is not finite": not np.isfinite(self.backend.to_numpy(self.state.score)).all(),
            "an output is not finite": not np.isfinite(self.backend.to_numpy(output)).all(),
            "a position from the future": kept.max() >= self.read,
            "something lost": self.read > CHUNK and gone.size != CHUNK,
        }
        broken = [what for what, is_so in problems.items() if is_so]
        if broken:
            raise RuntimeError(f"at token {self.read}: {', '.join(broken)}")


def soak(policy: at.Policy, backend: Backend, tokens: int) -> Marks:
    """Stream ``tokens`` and return the marks from the first tenth of them on."""
    old, young = Stream(policy, backend), Stream(policy, backend)
    for _ in range(10):
        young.step(young.chunk())
    table = np.zeros((4, MARKS))
    for mark in range(MARKS):
        until = tokens * (0.1 + 0.9 * mark / (MARKS - 1))
        while old.read < until:
            old.check(*old.step(old.chunk()))
        ratio = slowness(old, young)
        gc.collect()
        table[:, mark] = old.read, process_bytes(), sys.getallocatedblocks(), ratio
    return Marks(*table)


def slowness(old: Stream, young: Stream) -> float:
    """Return the processor time of steps of one stream by that of another, in turns."""
    spent = [0.0, 0.0]
    for turn in range(2 * TIMED):
        which = turn % 2
        stream = (old, young)[which]
        chunk = stream.chunk()
        begin = time.process_time()
        result = stream.step(chunk)
        spent[which] += time.process_time() - begin
        stream.check(*result)
    return spent[0] / spent[1]


def process_bytes() -> int:
    """Return the size of this process; where there is no /proc, the largest so far."""
    status = Path("/proc/self/statm")
    if status.exists():
        return int(status.read_text().split()[1]) * resource.getpagesize()
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def told(marks: Marks) -> tuple[str, bool]:
    """Return what the marks say, and whether something grew."""
    seen = marks.tokens[-1] - marks.tokens[0]
    size, objects = (np.polyfit(marks.tokens, of, 1)[0] for of in (marks.size, marks.objects))
    first, last = (np.median(quarter) for quarter in (marks.slowness[:25], marks.slowness[-25:]))
    grew = bool(size * seen > MOST_BYTES or objects * seen > MOST_OBJECTS)
    return (
        f"{size * 1e6 / 1024:+.1f} KiB and {objects * 1e6:+.1f} objects a million, speed drift "
        f"{last / first - 1:+.1%}{'  GREW' if grew else ''}"
    ), grew


def main() -> int:
    """Run all backends and policies; return 1 when something grew."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=10_000_000, help="of LFA-1e-3 (10000000)")
    parser.add_argument("--backends", nargs="+", default=["numpy", "torch"])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    given = parser.parse_args()
    failed = False
    for library in given.backends:
        backend = resolve(library)
        soak(POLICIES["LFA-1e-3"], backend, 2 * MARKS * CHUNK)  # what first calls keep
        for name in given.policies:
            tokens = given.tokens if name == "LFA-1e-3" else given.tokens // 10
            begin = time.process_time()
            words, grew = told(soak(POLICIES[name], backend, tokens))
            speed = tokens / (time.process_time() - begin)
            failed |= grew
            print(f"{library:6} {name:13} {tokens:,} tokens, {speed:,.0f}/s: {words}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
