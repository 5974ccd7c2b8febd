"""Entries beside a memory take part in the same softmax as the stored ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core import backend as backends

LIBRARIES = ("numpy", "array_api_strict", "torch", "jax")
ENCODINGS = (at.NoPosition(), at.RoPE(), at.ALiBi(), at.LMInfinite(n_local=4), at.Window(6))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def counted(start: int, stop: int) -> np.ndarray:
    return np.broadcast_to(np.arange(start, stop, dtype=np.int32), (2, stop - start))


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


def attended(
    xp: backends.Backend, size: int, stored: slice, beside: slice | None, **options: Any
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


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("causal", [False, True])
def test_beside_is_one_softmax(name: str, encoding: at.Encoding, causal: bool) -> None:
    """Where an entry is, in the memory or beside it, changes neither output nor scores."""
    if name == "jax" and encoding != at.RoPE():
        pytest.skip("compiling takes seconds; the scheme is the same code on every library")
    xp, options = library(name), {"encoding": encoding, "causal": causal}
    whole, scores = attended(xp, 12, slice(0, 12), None, **options)
    part, others = attended(xp, 7, slice(5, 12), slice(0, 5), **options)
    np.testing.assert_allclose(part, whole, atol=2e-6)
    for number, score in others.items():
        np.testing.assert_allclose(score, scores[number], atol=2e-6)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("retrieval", ["threshold", "gather", "approximate"])
def test_the_top_k_are_of_the_memory_and_all_beside_count(name: str, retrieval: str) -> None:
    xp = library(name)
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


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_positions_every_query_sees_the_plain_product(name: str) -> None:
    xp = library(name)
    key, value, query = (xp.from_numpy(normal(seed, 2, 3, 1, 4)) for seed in (1, 2, 3))
    memory = at.KeyValueMemory(4)
    empty = memory.init(like=key)
    beside = at.Beside(key, value)
    _, output = memory.attend(empty, query, encoding=at.RoPE(), causal=True, beside=beside)
    k, v, q = (normal(seed, 2, 3, 4).astype(np.float64) for seed in (1, 2, 3))
    weight = np.exp(np.einsum("bqd,bkd->bqk", q, k) / 2.0)
    wanted = np.einsum("bqk,bkd->bqd", weight / weight.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(xp.to_numpy(output)[:, :, 0], wanted, atol=2e-6)


@pytest.mark.parametrize("name", LIBRARIES)
def test_invalid_entries_beside_change_nothing(name: str) -> None:
    """Not even if they are NaN; and without any the output is that of the memory alone."""
    xp, memory = library(name), at.KeyValueMemory(4)
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


def test_a_sink_keeps_its_share() -> None:
    """The logit of an encoding's sink counts once, not once in each part."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Sunk(at.Encoding):
        def encode(self, query: Any, key: Any, places: Any, params: Any = None) -> Any:
            encoded = at.RoPE().encode(query, key, places)
            return encoded._replace(sink=np.full((1, 1, 1, 1, 1), 0.7, dtype=np.float32))

    numpy = library("numpy")
    for top in ({}, {"top_k": 12}):
        whole, scores = attended(numpy, 12, slice(0, 12), None, encoding=Sunk(), **top)
        part, others = attended(numpy, 7, slice(5, 12), slice(0, 5), encoding=Sunk())
        np.testing.assert_allclose(part, whole, atol=2e-6)
        np.testing.assert_allclose(others[7], scores[7], atol=2e-6)


@pytest.mark.parametrize("delay", [0, 3])
def test_a_layer_attends_to_what_is_beside_its_chunk(delay: int) -> None:
    """Slots beside every step and the flush, against a loop over the queries."""
    queue = at.DataOnlyMemory(delay) if delay else None
    layer = at.AttendreLayer(at.KeyValueMemory(16), queue, encoding=at.RoPE())
    query, key, value, slots = (normal(seed, 1, 8, 2, 4) for seed in (1, 2, 3, 4))
    beside = at.Beside(slots[:, :2], slots[:, 2:4])
    state, outputs = None, []
    for start in (0, 4):
        part = slice(start, start + 4)
        chunk = at.Chunk(query[:, part], key[:, part], value[:, part], beside=beside)
        state = layer.init(like=chunk) if state is None else state
        state, out = layer.step(state, chunk)
        outputs.append(out.value[out.valid])
    state, out = layer.flush(state, beside=beside)
    found = np.concatenate([*outputs, out.value[out.valid]])
    full = at.KeyValueMemory(8)
    for number in range(8):
        # What a query sees: all that was read when it left the queue.
        last = min(8, (number + delay) // 4 * 4 + 4)
        held, _ = full.insert(full.init(like=key), key[:, :last], value[:, :last])
        where = np.full((1, 1), number, dtype=np.int32)
        _, wanted = full.attend(
            held, query[:, number : number + 1], where, encoding=at.RoPE(), beside=beside
        )
        np.testing.assert_allclose(found[number], wanted[0, 0], atol=2e-6)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_flow_to_what_is_beside(name: str) -> None:
    xp, memory = library(name), at.KeyValueMemory(4, at.LFA(score="softmax"))
    key, value, query, other = (normal(seed, 1, 2, 1, 3) for seed in (1, 2, 3, 4))

    def loss(slots: Any) -> Any:
        k, v, q = (xp.from_numpy(x) for x in (key, value, query))
        state, _ = memory.insert(memory.init(like=k), k, v)
        _, output = memory.attend(state, q, beside=at.Beside(slots, 2.0 * slots))
        return (output * output).sum()

    if name == "torch":
        import torch

        slots = torch.tensor(other, requires_grad=True)
        loss(slots).backward()
        found = slots.grad.numpy()
    else:
        import jax

        found = np.asarray(jax.jit(jax.grad(loss))(xp.from_numpy(other)))
    for place in np.ndindex(other.shape):
        step = np.zeros_like(other)
        step[place] = 1e-2
        high, low = (float(loss(xp.from_numpy(other + sign * step))) for sign in (1, -1))
        np.testing.assert_allclose(found[place], (high - low) / 2e-2, rtol=2e-2, atol=2e-3)


def test_what_does_not_fit_beside_is_refused() -> None:
    memory, key = at.KeyValueMemory(4), normal(1, 2, 3, 2, 4)
    state = memory.init(like=key)
    cases = [
        (at.Beside(key[:, :, :1], key), at.ShapeError, r"beside\.key has shape"),
        (at.Beside(key, key[:, :2]), at.ShapeError, r"beside\.value has shape"),
        (at.Beside(key.astype(np.float64), key), at.DTypeError, r"beside\.key has dtype"),
        (at.Beside(key, key, key[:, :, 0, 0]), at.DTypeError, r"beside\.valid"),
        (at.Beside(key, key * np.nan), at.NonFiniteError, r"beside\.value has NaN"),
        (at.Beside(key, key, position=key[:, :, 0, 0]), at.DTypeError, r"beside\.position"),
    ]
    for beside, error, message in cases:
        with pytest.raises(error, match=message):
            memory.attend(state, key, beside=beside)
