"""Entries outside of the device: found by their keys, deleted for good, saved and opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import attendre_core as at

BATCH, SEQ, HEADS, KV_HEADS, DIM = 2, 6, 4, 2, 8


def chunks(count: int, seed: int = 0, seq: int = SEQ) -> list[tuple[Any, Any, Any]]:
    rng = np.random.default_rng(seed)

    def numbers(heads: int) -> Any:
        return rng.standard_normal((BATCH, seq, heads, DIM)).astype(np.float32)

    return [(numbers(HEADS), numbers(KV_HEADS), numbers(KV_HEADS)) for _ in range(count)]


def softmax_attention(query: Any, keys: Any, values: Any) -> Any:
    """Attention of one query of one head over some entries, in plain float64."""
    logits = np.asarray(keys, dtype=np.float64) @ query.astype(np.float64) / np.sqrt(DIM)
    weight = np.exp(logits - logits.max())
    return weight / weight.sum() @ np.asarray(values, dtype=np.float64)


def run(memory: Any, some: list[Any], **options: Any) -> tuple[Any, list[Any], list[Any]]:
    state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM)
    outputs, evicted = [], []
    for query, key, value in some:
        state, gone = memory.insert(state, key, value)
        state, output = memory.attend(state, query, **options)
        outputs.append(output)
        evicted.append(gone)
    return state, outputs, evicted


@pytest.mark.parametrize("encoding", [at.NoPosition(), at.RoPE(), at.ALiBi()])
def test_a_store_that_finds_everything_is_full_attention(encoding: Any) -> None:
    """With a store and a top K as large as the input, the softmax is over all that was read."""
    store = at.HostStore(capacity=100)
    memory = at.Tiers(at.KeyValueMemory(7), at.HostTier(store, top_k=100))
    whole = at.KeyValueMemory(200)
    some = chunks(5)
    _, outputs, evicted = run(memory, some, causal=True, encoding=encoding)
    _, want, _ = run(whole, some, causal=True, encoding=encoding)
    for got, expected in zip(outputs, want, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-6)
    assert store.lengths == (23, 23)
    assert store.positions(1) == list(range(23))
    assert not any(gone.valid.any() for gone in evicted)


def test_memorizing_transformer_is_its_formula() -> None:
    """g * (softmax over the top K of all earlier chunks) + (1 - g) * (softmax over this chunk).

    Memorizing Transformer: local attention is causal within the segment, the memory holds what was
    read before it, and positions do not apply to the memory.
    """
    top_k, some = 5, chunks(4, seed=1)
    store = at.HostStore(capacity=1000)
    memory = at.Tiers(
        at.KeyValueMemory(SEQ), at.HostTier(store, top_k=top_k), read=at.Gate(positions=False)
    )
    gate = np.asarray([-1.0, 0.0, 0.5, 2.0], dtype=np.float32)
    params = memory.parameters(HEADS, DIM)._replace(gate=gate)
    _, outputs, _ = run(memory, some, causal=True, policy_params=params)
    for number, (query, key, value) in enumerate(some):
        for b, i, h in np.ndindex(BATCH, SEQ, HEADS):
            g = h // (HEADS // KV_HEADS)
            local = softmax_attention(query[b, i, h], key[b, : i + 1, g], value[b, : i + 1, g])
            want = local
            if number:
                keys = np.concatenate([k[b, :, g] for _, k, _ in some[:number]])
                values = np.concatenate([v[b, :, g] for _, _, v in some[:number]])
                best = np.argsort(-(keys @ query[b, i, h]))[:top_k]
                far = softmax_attention(query[b, i, h], keys[best], values[best])
                share = 1 / (1 + np.exp(-gate[h]))
                want = share * far + (1 - share) * local
            np.testing.assert_allclose(outputs[number][b, i, h], want, atol=1e-5)


def test_a_full_store_deletes_the_oldest_and_hands_it_back() -> None:
    store = at.HostStore(capacity=10)
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(store, top_k=4))
    _, _, evicted = run(memory, chunks(6))
    assert store.lengths == (10, 10)
    assert store.positions() == list(range(20, 30))
    gone = [p for one in evicted for p in one.position[0][one.valid[0]].tolist()]
    assert gone == list(range(20))


def test_the_least_used_goes_first() -> None:
    """Entries that queries attend to stay, whatever their age."""
    store = at.HostStore(capacity=8, delete="least-used")
    memory = at.Tiers(at.KeyValueMemory(2), at.HostTier(store, top_k=1))
    state = memory.init(batch=1, heads=1, head_dim=DIM)
    rng = np.random.default_rng(0)
    target = np.zeros((1, 1, 1, DIM), dtype=np.float32)
    target[..., 0] = 20.0
    for step in range(20):
        key = 0.1 * rng.standard_normal((1, 2, 1, DIM)).astype(np.float32)
        if step == 1:
            key[:, :1] = target
        state, _ = memory.insert(state, key, key)
        state, _ = memory.attend(state, target)
    assert 2 in store.positions(), "position 2 got all the attention"
    assert store.lengths == (8,)


INDICES = [at.ExactIndex(), at.FaissIndex(lists=8, probes=8, train_at=40)]


def index_of(settings: Any) -> Any:
    if isinstance(settings, at.FaissIndex):
        pytest.importorskip("faiss")
    return settings


@pytest.mark.parametrize("settings", INDICES, ids=["exact", "faiss"])
def test_what_is_deleted_is_never_found(settings: Any) -> None:
    """The whole index is never reset, and no search returns what was removed from it."""
    keys = np.random.default_rng(0).standard_normal((300, DIM)).astype(np.float32)
    slots = np.arange(200, dtype=np.int64)
    searcher = index_of(settings).make(keys)
    searcher.add(slots, keys[:200])
    gone = np.arange(0, 200, 3, dtype=np.int64)
    searcher.remove(gone)
    left = np.setdiff1d(slots, gone)
    found = searcher.search(keys[:50], 20)
    assert not np.isin(found, gone).any()
    want = left[np.argsort(-(keys[:50] @ keys[left].T), axis=1)[:, :20]]
    assert (np.sort(found) == np.sort(want)).mean() > 0.99
    # A slot that was freed can be used again.
    keys[gone] = keys[200 : 200 + len(gone)]
    searcher.add(gone, keys[gone])
    again = searcher.search(keys[gone], 1)
    assert np.isin(gone, again).mean() > 0.5


@pytest.mark.parametrize("settings", INDICES, ids=["exact", "faiss"])
def test_an_index_serves_a_store_beyond_its_capacity(settings: Any) -> None:
    store = at.HostStore(capacity=60, index=index_of(settings))
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(store, top_k=60))
    exact = at.Tiers(at.KeyValueMemory(SEQ), at.Tier(at.KeyValueMemory(60)))
    some = chunks(20)
    _, outputs, _ = run(memory, some)
    _, want, _ = run(exact, some)
    for got, expected in zip(outputs, want, strict=True):
        np.testing.assert_allclose(got, expected, atol=2e-6)


def test_a_saved_store_goes_on_the_same(tmp_path: Path) -> None:
    some = chunks(6)
    store = at.HostStore(capacity=15)
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(store, top_k=4))
    state, _, _ = run(memory, some[:4])
    store.save(tmp_path / "store.npz")
    other = at.HostStore.load(tmp_path / "store.npz")
    again = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(other, top_k=4))
    one, two = state, state
    for query, key, value in some[4:]:
        one, _ = memory.insert(one, key, value)
        two, _ = again.insert(two, key, value)
        one, a = memory.attend(one, query)
        two, b = again.attend(two, query)
        np.testing.assert_array_equal(a, b)
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    with pytest.raises(at.StateError, match="HostStore.save did not write it"):
        at.HostStore.load(tmp_path / "bad.npz")


def test_a_store_may_lie_in_files(tmp_path: Path) -> None:
    some = chunks(4)
    outputs = []
    for folder in (None, tmp_path / "store"):
        store = at.HostStore(capacity=30, folder=folder)
        memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(store, top_k=4))
        outputs.append(run(memory, some)[1])
    for one, two in zip(*outputs, strict=True):
        np.testing.assert_array_equal(one, two)
    assert (tmp_path / "store" / "key.npy").exists()
    with pytest.raises(at.StateError, match="folder of its own"):
        at.HostStore(capacity=30, folder=tmp_path / "store").open(1, 1, 4, 4)


def test_a_store_belongs_to_one_stream() -> None:
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(at.HostStore(50), top_k=4))
    state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM)
    some = chunks(3)
    for _, key, value in some[:2]:
        before = state
        state, _ = memory.insert(state, key, value)
    with pytest.raises(at.StateError, match="step the newest state"):
        memory.insert(before, *some[2][1:])


def test_rows_can_be_emptied() -> None:
    store = at.HostStore(50)
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(store, top_k=4))
    state, _, _ = run(memory, chunks(3))
    state = memory.reset(state, np.asarray([True, False]))
    assert store.lengths == (0, 12)
    state, _ = memory.insert(state, *chunks(1)[0][1:])
    assert store.lengths == (0, 18)


def test_torch_tensors_go_out_and_come_back() -> None:
    torch = pytest.importorskip("torch")
    some = chunks(4)
    outputs = []
    for xp in ("numpy", "torch"):
        memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(at.HostStore(20), top_k=4))
        state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM, xp=xp)
        for chunk in some:
            query, key, value = (torch.asarray(x) for x in chunk) if xp == "torch" else chunk
            state, _ = memory.insert(state, key, value)
            state, output = memory.attend(state, query)
        outputs.append(np.asarray(output))
    np.testing.assert_allclose(outputs[1], outputs[0], atol=2e-6)


def test_compiled_code_is_refused() -> None:
    jax = pytest.importorskip("jax")
    memory = at.Tiers(at.KeyValueMemory(SEQ), at.HostTier(at.HostStore(20), top_k=4))
    state = memory.init(batch=BATCH, heads=KV_HEADS, head_dim=DIM, xp="jax")
    _, key, value = chunks(1)[0]
    with pytest.raises(at.ConfigError, match="cannot be read in compiled code"):
        jax.jit(memory.insert)(state, key, value)
