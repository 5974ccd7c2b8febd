"""Systems of docs/examples/stores.py, each against its own formula."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.evaluation import load_tiny

FILE = Path(__file__).parents[2] / "docs" / "examples" / "stores.py"
LIBRARIES = ("numpy", "torch", "jax")
HEADS, DIM, WIDTH = 2, 4, 3


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("stores_example", FILE)
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax_over(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
    weights = np.exp(key @ query / np.sqrt(len(query)))
    return np.asarray(weights @ value / weights.sum())


@pytest.mark.parametrize("library", LIBRARIES)
def test_retro_attends_to_the_neighbours_of_the_last_complete_chunk(library: str, example) -> None:
    """Position i attends to the neighbours of chunk (i - m + 1) // m, and none before m - 1."""
    pytest.importorskip(library)
    found, m = backend(library), 4
    key, value, search = normal(1, 15, HEADS, DIM), normal(2, 15, HEADS, DIM), normal(3, 5, WIDTH)
    store = at.Store.build(search, key, value, by=3, xp=library)
    query, embedding = normal(4, 2, 12, HEADS, DIM), normal(5, 2, 3, WIDTH)
    output = example.chunked_cross_attention(
        store, found.from_numpy(query), found.from_numpy(embedding), m
    )
    got = np.asarray(found.to_numpy(output))
    for row, i, head in np.ndindex(2, 12, HEADS):
        want = np.zeros(DIM)
        if i >= m - 1:
            asked = embedding[row, (i - m + 1) // m]
            best = np.argsort(-(search @ asked))[:2]
            places = np.concatenate([np.arange(3 * n, 3 * n + 3) for n in best])
            want = softmax_over(query[row, i, head], key[places, head], value[places, head])
        np.testing.assert_allclose(got[row, i, head], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_longmem_mixes_local_and_retrieved_attention_by_a_gate(library: str, example) -> None:
    pytest.importorskip(library)
    found = backend(library)
    key, value = normal(1, 12, HEADS, DIM), normal(2, 12, HEADS, DIM)
    own_key, own_value = normal(3, 1, 5, HEADS, DIM), normal(4, 1, 5, HEADS, DIM)
    query, gate = normal(5, 1, 2, HEADS, DIM), normal(6, HEADS)
    flat = key.reshape(12, -1)
    store = at.Store.build(flat, key, value, by=3, xp=library)
    memory = at.KeyValueMemory(5)
    arrays = [found.from_numpy(a) for a in (own_key, own_value, query, gate)]
    state, _ = memory.insert(memory.init(like=arrays[0]), *arrays[:2])
    output = example.long_mem(store, state, memory, arrays[2], arrays[3], chunks=1)
    means = flat.reshape(4, 3, -1).mean(axis=1)
    best = [int(np.argmax(means @ query[0, n].reshape(-1))) for n in range(2)]
    places = np.concatenate([np.arange(3 * n, 3 * n + 3) for n in best])
    for number, head in np.ndindex(2, HEADS):
        q, share = query[0, number, head], 1 / (1 + np.exp(-gate[head]))
        local = softmax_over(q, own_key[0, :, head], own_value[0, :, head])
        far = softmax_over(q, key[places, head], value[places, head])
        want = share * local + (1 - share) * far
        got = np.asarray(found.to_numpy(output))[0, number, head]
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", LIBRARIES)
def test_trams_selects_from_a_pool_by_keys_alone(library: str, example) -> None:
    """The m entries with the largest cos(k', 1) |k'| of a FIFO pool, and the segment, causally."""
    pytest.importorskip(library)
    found, size, selected, hidden = backend(library), 9, 4, 7
    key, value = normal(1, 2, 14, HEADS, DIM), normal(2, 2, 14, HEADS, DIM)
    own_key, own_value, query = (normal(n, 2, 3, HEADS, DIM) for n in (3, 4, 5))
    projection = normal(6, HEADS, hidden, DIM)
    valid = np.ones((2, 14), dtype=bool)
    valid[1, 3:] = False  # a row with fewer entries than are selected
    moved = [found.from_numpy(a) for a in (key, value, own_key, own_value, query, projection)]
    pool, segment = at.KeyValueMemory(size), at.KeyValueMemory(3)
    state = pool.store(pool.init(like=moved[0]), *moved[:2], valid=found.from_numpy(valid))
    inside = segment.store(segment.init(like=moved[2]), *moved[2:4])
    output = example.trams(pool, state, inside, moved[4], moved[5], selected)
    got = np.asarray(found.to_numpy(output))
    ones = np.ones(hidden)
    for row, head in np.ndindex(2, HEADS):
        held = [list(range(14 - size, 14)), [0, 1, 2]][row]
        keys = key[row, held, head] @ projection[head].T
        lengths = np.linalg.norm(keys, axis=1)
        cosine = keys @ ones / (lengths * np.linalg.norm(ones))
        best = [held[n] for n in np.argsort(-cosine * lengths)[:selected]]
        for i in range(3):
            every = [
                np.concatenate([pool_of[row, best, head], own[row, : i + 1, head]])
                for pool_of, own in ((key, own_key), (value, own_value))
            ]
            want = softmax_over(query[row, i, head], *every)
            np.testing.assert_allclose(got[row, i, head], want, rtol=1e-4, atol=1e-5)


def test_lumen_stores_lower_layers_and_runs_the_upper_ones(example) -> None:
    """All layers live: reading question and passage together. None live: the stored states."""
    model = load_tiny("encoder-decoder")
    layers = model.reading_part.layers
    passages, question = [[5, 9, 12, 30], [7, 8, 40, 41, 22]], [5, 9, 3]
    live = example.lumen_encode(
        model, example.lumen_store(model, passages, layers), question, layers
    )
    store = example.lumen_store(model, passages, layers)
    asked = np.asarray(model.reading_part.embed(model.reading_params, np.asarray([question]), None))
    best = int(store.search(asked[0].mean(axis=0), 1).index[0])
    want = model.encode([*question, *passages[best]])
    np.testing.assert_allclose(live, want, rtol=1e-4, atol=1e-5)
    frozen = example.lumen_store(model, passages, 0)
    part, params = model.reading_part, model.reading_params
    kept = example.lumen_encode(model, frozen, question, 0, passages=2)
    alone = [part.final(params, kept[:, :3])]
    np.testing.assert_allclose(alone[0], model.encode(question), rtol=1e-4, atol=1e-5)


def test_lumen_upper_layers_see_question_and_passage_together(example) -> None:
    """One live layer: the lower layers of each alone, then one layer over both, by hand."""
    model = load_tiny("encoder-decoder")
    passages, question = [[5, 9, 12, 30]], [5, 9, 3]
    got = example.lumen_encode(model, example.lumen_store(model, passages, 1), question, 1)
    lower = [np.asarray(example._layers(model, [row], 0, -1)) for row in (question, passages[0])]
    both = example._run(model, np.concatenate(lower, axis=1), -1)
    want = model.reading_part.final(model.reading_params, both)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_prototypes_are_means_of_clusters(example) -> None:
    key, value = normal(1, 30, HEADS, DIM), normal(2, 30, HEADS, DIM)
    cluster = example.kmeans(key.reshape(30, -1), 4)
    store = example.prototypes(key, value, 4)
    taken = store.take(range(store.chunks))
    for number, members in enumerate(np.unique(cluster)):
        own = cluster == members
        np.testing.assert_allclose(taken["key"][number, 0], key[own].mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(taken["value"][number, 0], value[own].mean(axis=0), rtol=1e-5)
    centres = np.stack(
        [key[cluster == n].reshape(-1, HEADS * DIM).mean(axis=0) for n in np.unique(cluster)]
    )
    nearest = ((key.reshape(30, 1, -1) - centres) ** 2).sum(axis=-1).argmin(axis=1)
    assert np.array_equal(np.unique(cluster)[nearest], cluster)


def test_as_many_prototypes_as_entries_is_attention_to_all(example) -> None:
    key, value, query = (normal(n, 1, 9, HEADS, DIM) for n in range(3))
    store = example.prototypes(key[0], value[0], 9)
    memory = at.KeyValueMemory(9)
    empty = memory.init(like=key)
    full, _ = memory.insert(empty, key, value)
    everything = store.beside(np.zeros((1, HEADS * DIM), np.float32), store.chunks)
    _, got = memory.attend(empty, query, beside=everything)
    _, want = memory.attend(full, query)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_retrieval_finds_more_of_the_attention_than_chance(example) -> None:
    """The figure of docs/systems.md: a tiny model's own keys, 16 of 128 chunks."""
    query = normal(1, 64, HEADS, DIM) * 3
    found, chance = example.mass_found(query, query, 2, 4)
    assert found > 2 * chance
    assert chance == pytest.approx(4 / 32, abs=0.05)
