"""Systems of others by name, held against what their authors describe, token by token."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.layer import cross_attention

LENGTH, HEADS, DIM, SIZE = 40, 2, 4, 10


@pytest.fixture(scope="module")
def stream() -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of one row, (1, length, heads, dim)."""
    rng = np.random.default_rng(5)
    query, key = (rng.standard_normal((1, LENGTH, HEADS, DIM)) for _ in range(2))
    return 2 * query, key


def kept(
    config: at.MemoryConfig, stream: tuple[np.ndarray, np.ndarray], chunk: int = 1
) -> np.ndarray:
    """Return the positions that stay, (heads, size) if each head chooses, else (size,)."""
    memory = config.kv_memory()
    state = memory.init(batch=1, heads=HEADS, head_dim=DIM, dtype=np.float64, chunk=chunk)
    query, key = stream
    for start in range(0, LENGTH, chunk):
        part = slice(start, start + chunk)
        state, _ = memory.insert(state, key[:, part], key[:, part])
        state, _ = memory.attend(state, query[:, part], causal=True)
    state, _ = memory.settle(state)
    places = np.where(state.valid[0], state.position[0], 10**6)
    return np.sort(places, axis=-1)[..., :SIZE]


def weights(query: np.ndarray, key: np.ndarray) -> np.ndarray:
    logits = key @ query / np.sqrt(DIM)
    grown = np.exp(logits - logits.max())
    return np.asarray(grown / grown.sum())


def test_h2o_is_heavy_hitters_and_a_window_for_each_head(
    stream: tuple[np.ndarray, np.ndarray],
) -> None:
    query, key = stream
    config = at.preset("H2O", SIZE, chunk=1)
    for head in range(HEADS):
        cache: list[int] = []
        total = np.zeros(LENGTH)
        for now in range(LENGTH):
            cache.append(now)
            total[cache] += weights(query[0, now, head], key[0, cache, head])
            if len(cache) > SIZE:
                older = cache[: -(SIZE // 2)]
                cache.remove(min(older, key=lambda place: total[place]))
        assert kept(config, stream)[head].tolist() == cache


def test_tova_keeps_what_the_last_query_weighs(stream: tuple[np.ndarray, np.ndarray]) -> None:
    query, key = stream
    cache: list[int] = []
    for now in range(LENGTH):
        cache.append(now)
        each = [weights(query[0, now, h], key[0, cache, h]) for h in range(HEADS)]
        if len(cache) > SIZE:
            del cache[int(np.argmin(np.mean(each, axis=0)))]
    assert kept(at.preset("TOVA", SIZE, chunk=1), stream).tolist() == cache


@pytest.mark.parametrize(
    ("name", "same"),
    [
        ("H2O", at.LFA(0.0, at.ConstantScore(0.0), score="softmax")),
        ("TOVA", at.LRA("last", at.ConstantScore(0.0), score="softmax", heads="mean")),
    ],
)
def test_as_options_of_the_papers_policies(
    name: str, same: at.Policy, stream: tuple[np.ndarray, np.ndarray]
) -> None:
    config = at.preset(name, SIZE, chunk=8)
    other = replace(config, policy=same)
    assert np.array_equal(kept(config, stream, chunk=8), kept(other, stream, chunk=8))


def test_transformer_xl_sees_the_cache_and_its_own_segment() -> None:
    memory = at.preset("Transformer-XL", 8, chunk=4).kv_memory()
    state = memory.init(batch=1, heads=1, head_dim=2, chunk=4)
    for start in range(0, 24, 4):
        chunk = np.ones((1, 4, 1, 2), np.float32)
        state, _ = memory.insert(state, chunk, chunk)
        seen = np.sort(state.position[0][state.valid[0]])
        assert seen.tolist() == list(range(max(0, start - 8), start + 4))


def test_lm_infinite_is_a_lambda() -> None:
    config = at.preset("LM-Infinite", 16, chunk=4)
    memory = config.kv_memory()
    assert config.positions == "clamp"
    state = memory.init(batch=1, heads=1, head_dim=2, chunk=4)
    for _ in range(10):
        chunk = np.ones((1, 4, 1, 2), np.float32)
        state, _ = memory.insert(state, chunk, chunk)
    state, _ = memory.settle(state)
    assert np.sort(state.position[0][state.valid[0]]).tolist() == [0, 1, 2, 3, *range(28, 40)]
    assert at.preset("LM-Infinite", 2048).policy == at.AttentionSink(sinks=100)


class TestUnlimiformer:
    rows = ([1, 60, 61, 4, 2, 70, 30, 12, 71, 72, 33, 13, 3], [1, 60, 5, 2, 31, 13, 3])

    def test_each_head_attends_across_to_its_best(self, monkeypatch: pytest.MonkeyPatch) -> None:
        model = load_tiny("encoder-decoder")
        used: list[int | None] = []

        def spy(*arrays: np.ndarray, top_k: int | None = None, scale: float | None = None):
            used.append(top_k)
            return cross_attention(*arrays, top_k=top_k, scale=scale)

        monkeypatch.setattr("attendre_core.zoo.architectures.t5.cross_attention", spy)
        few = at.preset("Unlimiformer", 16, chunk=16, top_k=3)
        plain = at.preset("MT", 16, chunk=16)
        logits = model.with_memory(few).logits(self.rows)
        assert used == [3]
        assert not np.allclose(logits, model.with_memory(plain).logits(self.rows))
        every = model.with_memory(replace(few, cross_top_k=99)).logits(self.rows)
        np.testing.assert_allclose(
            every, model.with_memory(plain).logits(self.rows), rtol=1e-5, atol=1e-5
        )

    def test_writing_and_scoring_agree(self) -> None:
        model = load_tiny("encoder-decoder", at.preset("Unlimiformer", 16, chunk=16, top_k=2))
        stream = model.stream(2)
        stream.feed(self.rows)
        np.testing.assert_allclose(
            stream.next_logits(), model.logits(self.rows)[:, -1], rtol=1e-5, atol=1e-5
        )

    def test_it_is_part_of_the_settings(self) -> None:
        with pytest.raises(at.ConfigError, match="cross_top_k is 0"):
            at.MemoryConfig(at.FIFO(), 16, cross_top_k=0)
