"""Policies with parameters: gradients against finite differences, heads, layers, mistakes.

That they are their formulas is in `attendre_conformance.beyond`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.learned import (
    CHUNKS,
    DIM,
    EXPIRE,
    HEADS,
    KEY,
    KV,
    PRUNE,
    QUERY,
    SPAN,
    VALUE,
    normal,
)  # fmt: skip
from attendre_core import backend as backends


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


@pytest.mark.parametrize(
    ("policy", "params"), [(EXPIRE, SPAN), (at.DynamicContextPruning(), PRUNE)]
)
def test_heads_of_their_own_are_memories_of_their_own(
    policy: at.Policy, params: dict[str, Any]
) -> None:
    memory = at.KeyValueMemory(5, policy, per_head=True)
    single = replace(memory, per_head=False)

    def read(memory: Any, groups: slice) -> tuple[np.ndarray, np.ndarray]:
        heads = slice(groups.start * 2, groups.stop * 2)
        own = {
            name: x if x.ndim == 0 else x[heads if name == "query" else groups]
            for name, x in params.items()
        }
        own = {name: x.astype(np.float32) for name, x in own.items()}
        key, value = (x[None, :, groups].astype(np.float32) for x in (KEY, VALUE))
        query = QUERY[None, :, heads].astype(np.float32)
        state, outputs = memory.init(like=key), []
        for chunk in CHUNKS:
            part = slice(chunk[0], chunk[-1] + 1)
            state, _ = memory.insert(state, key[:, part], value[:, part], policy_params=own)
            state, output = memory.attend(state, query[:, part], policy_params=own)
            outputs.append(output)
        return np.concatenate(outputs, axis=1), state.position

    every, kept = read(memory, slice(0, 2))
    for g in range(KV):
        alone, own = read(single, slice(g, g + 1))
        np.testing.assert_allclose(every[:, :, 2 * g : 2 * g + 2], alone, atol=1e-5)
        assert sorted(kept[0, g].tolist()) == sorted(own[0].tolist())


def loss_of(
    xp: backends.Backend, policy: at.Policy, size: int, dtype: Any, chunks: Any
) -> Callable[..., Any]:
    """Return a loss of parameters and keys: what the queries read, over all chunks."""
    memory = at.KeyValueMemory(size, policy)

    def array(x: Any) -> Any:
        return xp.from_numpy(np.asarray(x, dtype=dtype))

    def loss(params: dict[str, Any], key: Any) -> Any:
        state, total = memory.init(like=key), 0.0
        for number, chunk in enumerate(chunks):
            part = slice(chunk[0], chunk[-1] + 1)
            value, query = array(VALUE[None, part]), array(QUERY[None, part])
            state, _ = memory.insert(state, key[:, part], value, policy_params=params)
            state, output = memory.attend(state, query, policy_params=params, causal=True)
            total = total + (output * array(normal(20 + number, *output.shape))).sum()
        return total

    return loss


@pytest.mark.parametrize("name", ["torch", "jax"])
@pytest.mark.parametrize("size", [6, 16])
@pytest.mark.parametrize(
    ("policy", "params"),
    [(EXPIRE, SPAN), (at.DynamicContextPruning(1.0), PRUNE), (at.DynamicContextPruning(), PRUNE)],
    ids=["expire-span", "pruning-1", "pruning-1.5"],
)
def test_gradients_are_finite_differences(
    name: str, size: int, policy: at.Policy, params: dict[str, Any]
) -> None:
    """Through the mask, the spans and products that are stored, and eviction between chunks."""
    xp = library(name)
    dtype = np.float64 if name == "torch" else np.float32
    if name == "jax" and (size == 16 or policy == at.DynamicContextPruning(1.0)):
        pytest.skip("compiling takes seconds; torch has shown it")
    loss = loss_of(xp, policy, size, dtype, CHUNKS if name == "torch" else CHUNKS[:2])
    point = {k: np.asarray(v, dtype=dtype) for k, v in params.items()}
    key = KEY[None].astype(dtype)
    if name == "torch":
        import torch

        leaves = {k: torch.tensor(v, requires_grad=True) for k, v in point.items()}
        leaf = torch.tensor(key, requires_grad=True)
        loss(leaves, leaf).backward()
        found = {k: v.grad.numpy() for k, v in leaves.items()}
        found_key, step, close = leaf.grad.numpy(), 1e-6, {"rtol": 1e-4, "atol": 1e-6}
        value = loss
    else:
        import jax

        value = jax.jit(loss)
        given = {k: xp.from_numpy(v) for k, v in point.items()}
        found, found_key = jax.jit(jax.grad(loss, (0, 1)))(given, xp.from_numpy(key))
        step, close = 3e-3, {"rtol": 5e-2, "atol": 2e-2}

    def at_point(changed: dict[str, Any], where: Any) -> float:
        return float(value({k: xp.from_numpy(v) for k, v in changed.items()}, xp.from_numpy(where)))

    for leaf_name, array in point.items():
        for place in list(np.ndindex(array.shape))[:4]:
            ends = []
            for sign in (1, -1):
                moved = array.copy()
                moved[place] += sign * step
                ends.append(at_point({**point, leaf_name: moved}, key))
            slope = (ends[0] - ends[1]) / (2 * step)
            np.testing.assert_allclose(np.asarray(found[leaf_name])[place], slope, **close)
    assert max(np.abs(np.asarray(v)).max() for v in found.values()) > 1e-2
    for place in ((0, 1, 0, 0), (0, 5, 1, 2)):
        ends = []
        for sign in (1, -1):
            moved = key.copy()
            moved[place] += sign * step
            ends.append(at_point(point, moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(np.asarray(found_key)[place], slope, **close)


@pytest.mark.parametrize("delay", [0, 4])
def test_a_layer_passes_spans_and_parameters(delay: int) -> None:
    """`Chunk.score` replaces the policy's spans, which come from keys and parameters otherwise."""
    queue = at.DataOnlyMemory(delay) if delay else None
    layer = at.AttendreLayer(at.KeyValueMemory(8, EXPIRE), queue)
    params = {k: v.astype(np.float32) for k, v in SPAN.items()}
    key, value, query = (x[None].astype(np.float32) for x in (KEY, VALUE, QUERY))
    product = np.sum(key * params["weight"][None, None], axis=(2, 3)) + params["bias"]
    span = np.float32(EXPIRE.longest) / (1 + np.exp(-product))
    results = []
    for score, given in ((None, params), (span, None)):
        state, outputs = None, []
        for chunk in CHUNKS:
            part = slice(chunk[0], chunk[-1] + 1)
            step = at.Chunk(
                query[:, part], key[:, part], value[:, part],
                score=None if score is None else score[:, part],
            )  # fmt: skip
            state = layer.init(like=step) if state is None else state
            state, out = layer.step(state, step, policy_params=given)
            outputs.append(out.value)
        results.append((np.concatenate(outputs, axis=1), state.kv.position))
    np.testing.assert_allclose(results[0][0], results[1][0], atol=1e-5)
    assert (results[0][1] == results[1][1]).all()


def test_a_stack_hands_the_parameters_of_a_block_to_its_policy() -> None:
    class Layer:
        policy_params = {k: v.astype(np.float32) for k, v in SPAN.items()}  # noqa: RUF012

        def project(self, x: Any, position: Any) -> tuple[Any, Any, Any]:
            batch, seq, _ = x.shape
            split = x.reshape(batch, seq, 2 * KV, DIM)
            return split, split[:, :, :KV], split[:, :, KV:]

        def finish(self, attended: Any, carry: Any) -> Any:
            return carry + attended.reshape(*carry.shape)

    layer, width = at.AttendreLayer(at.KeyValueMemory(9, EXPIRE), at.DataOnlyMemory(3)), 4 * DIM
    stack = at.Stack((layer,))
    state = stack.init(batch=1, heads=2 * KV, kv_heads=KV, head_dim=DIM, carry_dim=width)
    x = normal(9, 1, 9, width).astype(np.float32)
    state, _ = stack.step(state, [Layer()], x)
    product = np.sum(x.reshape(9, 2, KV, DIM)[:, 0] * SPAN["weight"], axis=(1, 2)) + SPAN["bias"]
    order = np.argsort(state[0].kv.position[0])
    spans = state[0].kv.score[0][order]
    np.testing.assert_allclose(spans, EXPIRE.longest / (1 + np.exp(-product)), atol=1e-4)
    state, rest = stack.flush(state, [Layer()])
    assert all(np.isfinite(one.x).all() for one in rest)


def test_mistakes_say_what_to_do() -> None:
    key = np.ones((1, 2, KV, DIM), dtype=np.float32)
    memory = at.KeyValueMemory(4, EXPIRE)
    with pytest.raises(at.ConfigError, match=r"ExpireSpan: policy_params is NoneType without wei"):
        memory.insert(memory.init(like=key), key, key)
    with pytest.raises(at.ConfigError, match="ramp is 0, expected a number of positions"):
        at.ExpireSpan(ramp=0)
    with pytest.raises(at.ConfigError, match=r"alpha is 3, expected 1\.0, 1\.5 or 2\.0"):
        at.DynamicContextPruning(alpha=3)

    @dataclass(frozen=True)
    class Wrong(at.Policy):
        def soft_mask(self, stored: Any, attention: Any) -> Any:
            return stored.score

    memory = at.KeyValueMemory(4, Wrong())
    with pytest.raises(at.ShapeError, match=r"Wrong\.soft_mask: returned shape \(1, 4\), expected"):
        memory.attend(memory.init(like=key), key)


def test_top_k_documents_and_what_is_beside_go_with_a_mask() -> None:
    """A mask is a part of the logits: it chooses the top K, and shares the softmax."""
    params = {k: v.astype(np.float32) for k, v in SPAN.items()}
    key, value, query = (x[None, :12].astype(np.float32) for x in (KEY, VALUE, QUERY))
    memory = at.KeyValueMemory(12, EXPIRE)
    documents = {"document": np.repeat(np.asarray([[0, 1]], dtype=np.int32), 6, axis=1)}
    state = memory.init(like=key, aux=documents)
    state, _ = memory.insert(state, key, value, aux=documents, policy_params=params)
    given = {"policy_params": params, "document": documents["document"]}
    beside = at.Beside(key[:, :2], value[:, :2])
    for top_k in (None, 3):
        _, output = memory.attend(state, query, top_k=top_k, beside=beside, **given)
        position, span = state.position[0], state.score[0]
        for t, head in np.ndindex(12, HEADS):
            g = head // 2
            logits = {}
            for slot, p in enumerate(position):
                mask = min(max(1.0 + (span[slot] - (t - p)) / EXPIRE.ramp, 0.0), 1.0)
                if p // 6 == t // 6 and mask > 0:
                    logits[p] = QUERY[t, head] @ KEY[p, g] / sqrt(DIM) + np.log(mask)
            best = sorted(logits, key=lambda p: logits[p])[-(top_k or 12) :]
            rows = [(logits[p], VALUE[p, g]) for p in best]
            rows += [(QUERY[t, head] @ KEY[p, g] / sqrt(DIM), VALUE[p, g]) for p in (0, 1)]
            weight = np.exp([x for x, _ in rows])
            want = weight @ np.stack([v for _, v in rows]) / weight.sum()
            np.testing.assert_allclose(output[0, t, head], want, atol=2e-5)
