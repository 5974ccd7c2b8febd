"""Law of head sizes: each K/V head is a memory of its own size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.running import few, from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")

SIZES = (3, 7, 5)
MEMORIES = {
    "softmax": at.KeyValueMemory(7, at.H2O(), present="visible", per_head=True),
    "fifo": at.KeyValueMemory(7, per_head=True),
    "logits": at.KeyValueMemory(7, at.LFA(1e-2), per_head=True, sinks=1, protect_recent=1),
    "pinned": at.KeyValueMemory(7, at.LRU(), per_head=True, pin=((2, 4),)),
    "random": at.KeyValueMemory(7, at.TOVA(), per_head=True, ties=at.RandomTies(3)),
}


def test_a_head_is_a_memory_of_its_own_size(backend: Any) -> None:
    """What a head holds, hands back and returns is what a memory with that head alone would.

    Specification, law-head-sizes.
    """
    for name in few(backend, tuple(MEMORIES)):
        compare(backend, replace(MEMORIES[name], head_sizes=SIZES), name)


def compare(backend: Any, memory: at.KeyValueMemory, name: str) -> None:
    rng = np.random.default_rng(5)
    state = memory.init(batch=2, heads=3, head_dim=4, xp=backend.xp, chunk=4)
    alone = [
        replace(memory, size=size, head_sizes=(), ties=memory.ties).init(
            batch=2, heads=1, head_dim=4, xp=backend.xp, chunk=4
        )
        for size in SIZES
    ]
    for step in range(6):
        key, value = (rng.normal(size=(2, 4, 3, 4)).astype(np.float32) for _ in range(2))
        query = rng.normal(size=(2, 4, 6, 4)).astype(np.float32)
        flags = np.asarray([[True] * 4, [True, step % 3 > 0, True, True]])
        given = from_numpy(backend, {"key": key, "value": value, "query": query, "valid": flags})
        ok = {"valid": given["valid"]}
        state, evicted = memory.insert(state, given["key"], given["value"], **ok)
        state, out = memory.attend(state, given["query"], **ok)
        for head, size in enumerate(SIZES):
            one = replace(memory, size=size, head_sizes=())
            part, pair = slice(head, head + 1), slice(2 * head, 2 * head + 2)
            own, gone = one.insert(
                alone[head], given["key"][:, :, part, :], given["value"][:, :, part, :], **ok
            )
            own, said = one.attend(own, given["query"][:, :, pair, :], **ok)
            alone[head] = own
            here = f"{name}, step {step}, head {head} of size {size}"
            assert held(backend, state, head) == held(backend, own, 0), here
            assert left(backend, evicted, head) == left(backend, gone, 0), here
            comparing.assert_close(
                to_numpy(backend, out)[:, :, pair], to_numpy(backend, said), f"output, {here}"
            )
    emptied = memory.reset(state, from_numpy(backend, np.asarray([True, False])))
    fresh = memory.init(batch=2, heads=3, head_dim=4, xp=backend.xp, chunk=4)
    comparing.assert_same(
        to_numpy(backend, emptied.arrival)[0], to_numpy(backend, fresh.arrival)[0], "closed slots"
    )


def held(backend: Any, state: Any, head: int) -> list[list[int]]:
    position, valid = (to_numpy(backend, x)[:, head] for x in (state.position, state.valid))
    return [sorted(position[row][valid[row]].tolist()) for row in range(len(valid))]


def left(backend: Any, evicted: Any, head: int) -> list[list[int]]:
    position, valid = (to_numpy(backend, x)[:, head] for x in (evicted.position, evicted.valid))
    return [sorted(position[row][valid[row]].tolist()) for row in range(len(valid))]
