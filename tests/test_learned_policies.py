"""Policies with parameters and soft masks, against plain loops and finite differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core import backend as backends

LIBRARIES = ("numpy", "array_api_strict", "torch", "jax")
#: Query heads, K/V heads, width of a head, rank of interactions.
HEADS, KV, DIM, RANK = 4, 2, 3, 2
#: One chunk after another: entries and queries of these positions.
CHUNKS = tuple(range(start, start + 4) for start in (0, 4, 8, 12))


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


KEY, VALUE, QUERY = normal(1, 16, KV, DIM), normal(2, 16, KV, DIM), normal(3, 16, HEADS, DIM)
SPAN = {"weight": normal(4, KV, DIM), "bias": np.asarray(-0.5)}
PRUNE = {
    "query": normal(5, HEADS, DIM, RANK),
    "key": normal(6, KV, DIM, RANK),
    "bias": np.asarray(0.75),
}
EXPIRE = at.ExpireSpan(longest=9, ramp=3)


# ------------------------------------------------------------------ the oracle


@dataclass
class Entry:
    """One stored entry of the oracle; ``number`` is its span, or what queries let pass."""

    position: int
    number: float


def attended(entries: list[Entry], position: int, mask: Callable[[Entry], float]) -> np.ndarray:
    """Weights by their softmax, multiplied by the mask and normalised again."""
    output = np.zeros((HEADS, DIM))
    for head in range(HEADS):
        g = head // (HEADS // KV)
        logits = [float(QUERY[position, head] @ KEY[e.position, g]) / sqrt(DIM) for e in entries]
        softmax = [exp(x - max(logits)) for x in logits]
        weight = [w / sum(softmax) * mask(e) for w, e in zip(softmax, entries, strict=True)]
        if sum(weight) > 0:
            for w, e in zip(weight, entries, strict=True):
                output[head] += w / sum(weight) * VALUE[e.position, g]
    return output


def expiring(size: int, causal: bool = False) -> tuple[np.ndarray, list[list[int]]]:
    """Expire-Span, word for word: outputs, and the positions kept after every chunk."""
    entries: list[Entry] = []
    outputs, kept = [], []
    for chunk in CHUNKS:
        for t in chunk:
            product = float(np.sum(SPAN["weight"] * KEY[t])) + float(SPAN["bias"])
            entries.append(Entry(t, EXPIRE.longest / (1.0 + exp(-product))))
        now = chunk[-1]
        while len(entries) > size:
            entries.remove(min(entries, key=lambda e: (e.number - (now - e.position), e.position)))
        for t in chunk:

            def mask(e: Entry, t: int = t) -> float:
                return min(max(1.0 + (e.number - (t - e.position)) / EXPIRE.ramp, 0.0), 1.0)

            seen = [e for e in entries if not causal or e.position <= t]
            outputs.append(attended(seen, t, mask) if seen else np.zeros((HEADS, DIM)))
        kept.append(sorted(e.position for e in entries))
    return np.stack(outputs), kept


def entmax_of_two(x: float, alpha: float) -> float:
    """Find by bisection the p that maximises p x + the Tsallis entropy of (p, 1 - p)."""
    if alpha == 1.0:
        return 1.0 / (1.0 + exp(-x))
    low, high = 0.0, 1.0
    for _ in range(80):
        p = 0.5 * (low + high)
        slope = x - (p ** (alpha - 1) - (1 - p) ** (alpha - 1)) / (alpha - 1)
        low, high = (p, high) if slope > 0 else (low, p)
    return 0.0 if high < 1e-12 else 1.0 if low > 1 - 1e-12 else low


def pruning(size: int, alpha: float) -> tuple[np.ndarray, list[list[int]]]:
    """Dynamic context pruning, word for word."""
    entries: list[Entry] = []
    outputs, kept = [], []
    for chunk in CHUNKS:
        entries += [Entry(t, 1.0) for t in chunk]
        while len(entries) > size:
            entries.remove(min(entries, key=lambda e: (e.number, e.position)))
        for t in chunk:
            q = sum(QUERY[t, h] @ PRUNE["query"][h] for h in range(HEADS))
            for e in entries:
                if e.position < t:
                    k = sum(KEY[e.position, g] @ PRUNE["key"][g] for g in range(KV))
                    x = float(q @ k) / sqrt(RANK) + float(PRUNE["bias"])
                    e.number *= entmax_of_two(x, alpha)
            outputs.append(attended(entries, t, lambda e: e.number))
        kept.append(sorted(e.position for e in entries))
    return np.stack(outputs), kept


# ------------------------------------------------------------------ against it


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


def run(
    xp: backends.Backend,
    policy: at.Policy,
    params: dict[str, Any],
    size: int,
    *,
    chunks: Any = CHUNKS,
    **options: Any,
) -> tuple[np.ndarray, list[list[int]], Any]:
    """Read the stream with a memory: outputs, kept positions, and the last state."""
    memory = at.KeyValueMemory(size, policy)

    def array(x: Any) -> Any:
        return xp.from_numpy(np.asarray(x, dtype=np.float32))

    params = {name: array(value) for name, value in params.items()}
    state, outputs, kept = None, [], []
    for chunk in chunks:
        part = slice(chunk[0], chunk[-1] + 1)
        key, value, query = (array(x[None, part]) for x in (KEY, VALUE, QUERY))
        at_key = xp.from_numpy(np.asarray([list(chunk)], dtype=np.int32))
        state = memory.init(like=key) if state is None else state
        state, _ = memory.insert(state, key, value, at_key, policy_params=params)
        state, output = memory.attend(state, query, at_key, policy_params=params, **options)
        outputs.append(xp.to_numpy(output)[0])
        position, valid = xp.to_numpy(state.position)[0], xp.to_numpy(state.valid)[0]
        kept.append(sorted(position[valid].tolist()))
    return np.concatenate(outputs), kept, state


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("size", [5, 12])
def test_expire_span_is_its_formula(name: str, size: int) -> None:
    want, kept = expiring(size, causal=size == 5)
    got, held, state = run(library(name), EXPIRE, SPAN, size, causal=size == 5)
    assert held == kept
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert tuple(state.score.shape) == (1, size)


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_context_pruning_is_its_formula(name: str, alpha: float) -> None:
    if name == "jax" and alpha != 1.5:
        pytest.skip("compiling takes seconds; the other libraries have shown it")
    want, kept = pruning(6, alpha)
    got, held, _ = run(library(name), at.DynamicContextPruning(alpha), PRUNE, 6)
    assert held == kept
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_masks_matter() -> None:
    """The streams above fade entries out, drop some for good, and evict others than FIFO does."""
    numpy = library("numpy")
    fifo, last, _ = run(numpy, at.FIFO(), {}, 7)
    for policy, params in ((EXPIRE, SPAN), (at.DynamicContextPruning(), PRUNE)):
        output, kept, _ = run(numpy, policy, params, 7)
        assert kept != last
        assert np.abs(output - fifo).max() > 0.1
    state = run(numpy, at.DynamicContextPruning(), PRUNE, 16)[2]
    assert (state.score == 0).any()
    assert ((state.score > 0) & (state.score < 1)).any()


def test_an_expired_entry_is_as_good_as_evicted() -> None:
    """A memory of longest + ramp entries gives what a memory of the whole input does."""
    numpy = library("numpy")
    whole, _, _ = run(numpy, EXPIRE, SPAN, 16, causal=True)
    part, kept, _ = run(numpy, EXPIRE, SPAN, EXPIRE.longest + EXPIRE.ramp, causal=True)
    np.testing.assert_allclose(part, whole, atol=2e-5)
    assert len(kept[-1]) == 12


@pytest.mark.parametrize(
    ("policy", "params"), [(EXPIRE, SPAN), (at.DynamicContextPruning(), PRUNE)]
)
def test_chunks_change_nothing_where_nothing_is_evicted(
    policy: at.Policy, params: dict[str, Any]
) -> None:
    numpy = library("numpy")
    few, _, state = run(numpy, policy, params, 16, causal=True)
    many, _, other = run(numpy, policy, params, 16, causal=True, chunks=[[t] for t in range(16)])
    np.testing.assert_allclose(many, few, atol=2e-5)
    order, order2 = np.argsort(state.position[0]), np.argsort(other.position[0])
    np.testing.assert_allclose(other.score[0][order2], state.score[0][order], atol=1e-5)


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


# ------------------------------------------------------------------ gradients


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


# ------------------------------------------------------------------ layers, mistakes


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
