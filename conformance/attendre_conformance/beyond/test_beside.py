"""Entries beside a memory take part in the same softmax as the stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at

pytestmark = pytest.mark.attendre_profile("laws")

ENCODINGS = (at.NoPosition(), at.RoPE(), at.ALiBi(), at.LMInfinite(n_local=4), at.Window(6))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Draw normal numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def counted(start: int, stop: int) -> np.ndarray:
    """Return positions, the same in two rows."""
    return np.broadcast_to(np.arange(start, stop, dtype=np.int32), (2, stop - start))


def attended(
    xp: Any, size: int, stored: slice, beside: slice | None, **options: Any
) -> tuple[np.ndarray, dict[int, np.ndarray]]:
    """Attend to 12 entries, some of them beside the memory; return output and scores."""
    key, value, query = (normal(seed, 2, 12, 2, 4) for seed in (1, 2, 3))
    query = np.concatenate([query[:, :3], query[:, 3:6]], axis=2)
    at_query = np.broadcast_to(np.asarray([5, 9, 11], dtype=np.int32), (2, 3))
    spec = {name: options.pop(name) for name in ("retrieval", "policy") if name in options}
    spec.setdefault("policy", at.LRA("sum", score="softmax"))
    memory = at.KeyValueMemory(size, **spec)

    def taken(*parts: Any) -> list[Any]:
        return [xp.from_numpy(np.ascontiguousarray(part)) for part in parts]

    arrays = taken(key[:, stored], value[:, stored], counted(0, 12)[:, stored])
    state, _ = memory.insert(memory.init(like=arrays[0]), *arrays)
    if beside is not None:
        k, v, p = taken(key[:, beside], value[:, beside], counted(0, 12)[:, beside])
        options["beside"] = at.Beside(k, v, position=p)
    state, output = memory.attend(state, *taken(query, at_query), **options)
    position, score = (xp.to_numpy(x) for x in (state.position, state.score))
    scores = {n: score[position == n] for n in range(stored.start, stored.stop)}
    return xp.to_numpy(output), scores


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("causal", [False, True])
def test_beside_is_one_softmax(backend: Any, encoding: at.Encoding, causal: bool) -> None:
    """Where an entry is, in the memory or beside it, changes neither output nor scores."""
    if backend.name == "jax" and encoding != at.RoPE():
        pytest.skip("compiling takes seconds; the scheme is the same code on every library")
    xp, options = backend, {"encoding": encoding, "causal": causal}
    whole, scores = attended(xp, 12, slice(0, 12), None, **options)
    part, others = attended(xp, 7, slice(5, 12), slice(0, 5), **options)
    np.testing.assert_allclose(part, whole, atol=2e-6)
    for number, score in others.items():
        np.testing.assert_allclose(score, scores[number], atol=2e-6)


@pytest.mark.parametrize("retrieval", ["threshold", "gather", "approximate"])
def test_the_top_k_are_of_the_memory_and_all_beside_count(backend: Any, retrieval: str) -> None:
    xp = backend
    given = {"retrieval": retrieval, "policy": at.LFA(score="softmax")}
    every, _ = attended(xp, 7, slice(5, 12), slice(0, 5), top_k=7, **given)
    part, _ = attended(xp, 7, slice(5, 12), slice(0, 5), top_k=3, **given)
    key, value, query = (normal(seed, 2, 12, 2, 4).astype(np.float64) for seed in (1, 2, 3))
    query = np.concatenate([query[:, :3], query[:, 3:6]], axis=2)
    for batch, number, head in np.ndindex(2, 3, 4):
        logits = key[batch, :, head // 2] @ query[batch, number, head] / 2.0
        best = sorted(range(5, 12), key=lambda i: logits[i])[-3:]
        for rows, output in ((range(12), every), ([*range(5), *best], part)):
            weight = np.exp([logits[i] for i in rows])
            wanted = weight @ value[batch, list(rows), head // 2] / weight.sum()
            np.testing.assert_allclose(output[batch, number, head], wanted, atol=2e-6)


def test_without_positions_every_query_sees_the_plain_product(backend: Any) -> None:
    xp = backend
    key, value, query = (xp.from_numpy(normal(seed, 2, 3, 1, 4)) for seed in (1, 2, 3))
    memory = at.KeyValueMemory(4)
    empty = memory.init(like=key)
    beside = at.Beside(key, value)
    _, output = memory.attend(empty, query, encoding=at.RoPE(), causal=True, beside=beside)
    k, v, q = (normal(seed, 2, 3, 4).astype(np.float64) for seed in (1, 2, 3))
    weight = np.exp(np.einsum("bqd,bkd->bqk", q, k) / 2.0)
    wanted = np.einsum("bqk,bkd->bqd", weight / weight.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(xp.to_numpy(output)[:, :, 0], wanted, atol=2e-6)


def test_invalid_entries_beside_change_nothing(backend: Any) -> None:
    """Not even if they are NaN; and without any the output is that of the memory alone."""
    xp, memory = backend, at.KeyValueMemory(4)
    key, value, query = (xp.from_numpy(normal(seed, 2, 3, 2, 4)) for seed in (1, 2, 3))
    state, _ = memory.insert(memory.init(like=key), key, value)
    nan = xp.from_numpy(np.full((2, 3, 2, 4), np.nan, dtype=np.float32))
    none = xp.from_numpy(np.zeros((2, 3), dtype=bool))
    alone = xp.to_numpy(memory.attend(state, query)[1])
    beside = xp.to_numpy(memory.attend(state, query, beside=at.Beside(nan, nan, none))[1])
    np.testing.assert_allclose(beside, alone, atol=1e-6)
    nothing = xp.to_numpy(
        memory.attend(memory.init(like=key), query, beside=at.Beside(nan, nan, none))[1]
    )
    assert (nothing == 0).all()
