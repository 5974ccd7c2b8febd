"""Published policies that read keys and queries: their laws, their cost, their place in models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops
from attendre_core.evaluation import load_tiny
from attendre_core.policies import view
from attendre_core.presets import KEY_PRESETS

BATCH, CHUNKS, SEQ, HEADS, DIM = 2, 6, 4, 2, 4
#: The policies whose scores need no pair of query and key.
NO_PAIRS = {
    "Knorm": at.Knorm(),
    "TRAMS": at.TRAMS(),
    "KeyDiff": at.KeyDiff(),
    "Leverage": at.Leverage(),
    "LagKV": at.LagKV(lag=4),
    "ExpectedAttention": at.ExpectedAttention(),
}


def noise(seed=0, heads=HEADS):
    """Return keys, values and queries, (batch, time, heads, dim) each."""
    rng = np.random.default_rng(seed)
    shape = (BATCH, CHUNKS * SEQ, heads, DIM)
    key, value = rng.normal(size=(2, *shape)).astype(np.float32)
    query = rng.normal(size=(BATCH, CHUNKS * SEQ, 2 * heads, DIM)).astype(np.float32)
    return key, value, query


def read(memory, key, value, query, seq=SEQ):
    """Read a text chunk by chunk; return the last state."""
    state = memory.init(like=key[:, :seq])
    for start in range(0, key.shape[1], seq):
        part = slice(start, start + seq)
        state, _ = memory.insert(state, key[:, part], value[:, part])
        state, _ = memory.attend(state, query[:, part], causal=True)
    return state


def kept(state):
    """Return the sorted positions of each row, or of each row and head."""
    return np.sort(np.where(state.valid, state.position, -1), axis=-1).tolist()


def by_position(state, count):
    """Return the scores of a row or of its heads in the order of positions, 0 where none is."""
    found = np.zeros((*state.score.shape[:-1], count))
    for at_ in np.ndindex(*state.score.shape):
        if state.valid[at_]:
            found[(*at_[:-1], state.position[at_])] = state.score[at_]
    return found


# -------------------------------------------------------------------- cost


@pytest.mark.parametrize("present", ["compete", "visible"])
@pytest.mark.parametrize("policy", [*NO_PAIRS.values(), at.H2O(), at.Nexus()], ids=repr)
def test_a_policy_that_reads_no_pairs_costs_none(policy, present, monkeypatch):
    """Neither logits nor weights are computed for it, in whole or pooled; H2O shows the trap."""

    def trap(*arguments, **options):
        raise RuntimeError("pairs were computed")

    def known(pairs, name):
        return trap() if name in ("logits", "weights") else ops.pooling.known(pairs, name)

    monkeypatch.setattr(view, "known", known)
    for name in ("pool_pairs", "pool_queries", "sum_logits"):
        monkeypatch.setattr(ops, name, trap)
    memory = at.KeyValueMemory(size=8, policy=policy, present=present)
    if isinstance(policy, (at.H2O, at.Nexus)):
        with pytest.raises(RuntimeError, match="pairs were computed"):
            read(memory, *noise())
    else:
        assert np.all(np.isfinite(read(memory, *noise()).score))


# -------------------------------------------------------------------- laws of single policies


@pytest.mark.parametrize("policy", [at.Knorm(), at.TRAMS()], ids=repr)
@pytest.mark.parametrize("per_head", [False, True])
def test_scores_of_single_keys_do_not_depend_on_the_chunk(policy, per_head):
    memory = at.KeyValueMemory(size=7, policy=policy, per_head=per_head)
    key, value, query = noise(1)
    states = [read(memory, key, value, query, seq) for seq in (1, 3, 8)]
    assert kept(states[0]) == kept(states[1]) == kept(states[2])
    numbers = -np.linalg.norm(key, axis=-1) if policy == at.Knorm() else key.sum(axis=-1) / 2
    numbers = np.moveaxis(numbers, 1, 2) if per_head else numbers.mean(axis=-1)
    assert kept(states[0]) == np.sort(np.argsort(numbers, axis=-1)[..., -7:], axis=-1).tolist()


@pytest.mark.parametrize("name", ["Knorm", "TRAMS", "KeyDiff", "Leverage", "LagKV"])
@pytest.mark.parametrize("present", ["compete", "visible"])
def test_a_positive_factor_for_all_keys_changes_no_choice(name, present):
    memory = at.KeyValueMemory(size=9, policy=NO_PAIRS[name], present=present, sinks=1)
    key, value, query = noise(2)
    want = kept(read(memory, key, value, query))
    assert kept(read(memory, key * np.float32(2.0**20), value, query)) == want
    assert kept(read(memory, key * np.float32(-1), value, query) if name != "TRAMS" else
                read(memory, key, value, query)) == want  # fmt: skip


def test_keydiff_reads_directions_alone():
    memory = at.KeyValueMemory(size=9, policy=at.KeyDiff(), per_head=True)
    key, value, query = noise(3)
    lengths = 2.0 ** np.random.default_rng(0).integers(-3, 4, size=key.shape[:-1])
    stretched = key * lengths[..., None].astype(np.float32)
    want, got = (read(memory, k, value, query) for k in (key, stretched))
    assert kept(want) == kept(got)
    np.testing.assert_allclose(got.score, want.score, atol=1e-6)


def test_keydiff_is_minus_the_cosine_to_the_mean_unit_key():
    memory = at.KeyValueMemory(size=CHUNKS * SEQ, policy=at.KeyDiff(), per_head=True)
    key, value, query = noise(4)
    state = read(memory, key, value, query)
    unit = key / np.linalg.norm(key, axis=-1, keepdims=True)
    mean = unit.mean(axis=1, keepdims=True)
    want = -(unit * mean).sum(axis=-1) / np.linalg.norm(mean, axis=-1)
    got = np.moveaxis(by_position(state, CHUNKS * SEQ), 1, 2)
    np.testing.assert_allclose(got, want, atol=2e-6)


@pytest.mark.parametrize("dim", [1, 3, 64, 128])
@pytest.mark.parametrize("ridge", [0.01, 0.1, 2.0])
def test_leverages_are_those_of_a_direct_inverse(dim, ridge):
    rng = np.random.default_rng(dim)
    scale = np.exp(rng.normal(size=dim))  # a spectrum, and a mean
    key = ((rng.normal(size=(1, 200, 1, dim)) + 0.5) * scale).astype(np.float32)
    memory = at.KeyValueMemory(size=256, policy=at.Leverage(ridge))
    state, _ = memory.insert(memory.init(like=key), key, key)
    x = key[0, :, 0].astype(np.float64)
    gram = x.T @ x
    inverse = np.linalg.inv(gram + ridge * np.trace(gram) / dim * np.eye(dim))
    want = np.einsum("ni,ij,nj->n", x, inverse, x)
    got = by_position(state, 200)[0]
    np.testing.assert_allclose(got, want, atol=2e-4 if ridge == 0.01 else 2e-5)
    assert 0 < got.sum() < dim


def test_leverage_says_what_a_ridge_is():
    with pytest.raises(at.ConfigError, match=r"Leverage: ridge is 0.*such as 0\.1"):
        at.Leverage(0.0)


def test_lagkv_does_not_know_the_units_of_a_channel():
    memory = at.KeyValueMemory(size=12, policy=at.LagKV(lag=4), present="visible", per_head=True)
    key, value, query = noise(5)
    unit = np.asarray([1.0, 2.0, 8.0, 0.5], dtype=np.float32)
    shift = np.asarray([0.0, 1.0, -4.0, 2.0], dtype=np.float32)
    want, got = (read(memory, k, value, query) for k in (key, key * unit + shift))
    assert kept(want) == kept(got)
    np.testing.assert_allclose(got.score, want.score, atol=1e-5)


@pytest.mark.parametrize("seq", [1, 2, 4])
def test_lagkv_has_the_same_blocks_whatever_the_chunks(seq):
    """Blocks of four: three are scored, each adds up to 1, and the last waits for the next."""
    memory = at.KeyValueMemory(size=64, policy=at.LagKV(lag=4))
    key, value, query = (x[:, :16] for x in noise(6))
    state = read(memory, key, value, query, seq)
    score = by_position(state, 16)
    np.testing.assert_allclose(score.reshape(BATCH, 4, 4).sum(axis=-1)[:, :3], 1.0, atol=1e-6)
    assert np.all(score[:, 12:] == 2.0)
    reference = read(memory, key, value, query, 4)
    np.testing.assert_allclose(score, by_position(reference, 16), atol=1e-6)


@pytest.mark.parametrize("seq", [1, 5, 24])
def test_expected_attention_knows_all_queries_so_far(seq):
    memory = at.KeyValueMemory(size=8, policy=at.ExpectedAttention())
    key, value, query = noise(7)
    query = query + 3
    number, mean, covariance = read(memory, key, value, query, seq).policy_state
    together = query.reshape(BATCH, CHUNKS * SEQ, HEADS, 2, DIM)
    together = np.moveaxis(together, 2, 1).reshape(BATCH, HEADS, -1, DIM).astype(np.float64)
    assert number.tolist() == [CHUNKS * SEQ] * BATCH
    np.testing.assert_allclose(mean, together.mean(axis=2), atol=1e-5)
    for b, g in np.ndindex(BATCH, HEADS):
        want = np.cov(together[b, g], rowvar=False, bias=True)
        np.testing.assert_allclose(covariance[b, g], want, atol=1e-5)


def test_expected_attention_is_an_expectation():
    """For normal queries the weights are the mean of exp(q.k / sqrt(d)), normalised."""
    rng = np.random.default_rng(8)
    key = rng.normal(size=(1, 6, 1, 4)).astype(np.float32)
    value = np.ones((1, 6, 1, 4), dtype=np.float32)
    query = (0.3 + 0.7 * rng.normal(size=(1, 40000, 1, 4))).astype(np.float32)
    memory = at.KeyValueMemory(size=6, policy=at.ExpectedAttention())
    state, _ = memory.insert(memory.init(like=key), key, value)
    state, _ = memory.attend(state, query)
    mean = np.exp(query[0, :, 0] @ key[0, :, 0].T / 2).mean(axis=0)
    np.testing.assert_allclose(by_position(state, 6)[0], 2 * mean / mean.sum(), rtol=0.03)


def test_nexus_samples_uniformly_if_nothing_is_known():
    """How often each of 40 entries is among the 10 that stay, over 400 seeds."""
    key = np.ones((1, 40, 1, 1), dtype=np.float32)
    counts = np.zeros(40)
    for seed in range(400):
        memory = at.KeyValueMemory(size=10, policy=at.Nexus(seed))
        state, _ = memory.insert(memory.init(like=key), key, key)
        counts[state.position[0]] += 1
    assert counts.sum() == 4000
    assert np.all(np.abs(counts - 100) < 5 * np.sqrt(100 * 0.75))


def test_nexus_keeps_in_proportion_to_weight():
    """Of two entries with weights w and 3w the heavier stays three times as often."""
    wins = 0
    for seed in range(600):
        stored = at.Stored(
            None, None, position=None, valid=np.asarray([[True, True]]),
            score=np.asarray([[0.1, 0.3]], dtype=np.float32),
            arrival=np.asarray([[0, 1]], dtype=np.int32), pinned=None, observed=None,
        )  # fmt: skip
        light, heavy = at.Nexus(seed).priority(stored)[0]
        wins += heavy > light
    assert abs(wins / 600 - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 600)


def test_nexus_is_not_frozen_in_the_order_of_the_paper():
    memory = at.KeyValueMemory(size=8, policy=at.Nexus())
    state = read(memory, *noise(9))
    assert float(memory.admitted_share(state).min()) > 0.1


# -------------------------------------------------------------------- in models


@pytest.mark.parametrize("name", KEY_PRESETS)
def test_presets_read_in_models(name):
    """In a model, in both orders, what is held is finite and within its size."""
    model = load_tiny("prefix-lm")
    tokens = list(range(1, 70)) * 2
    for words in ("", "+compete"):
        memory = at.preset(f"{name}{words}+chunk=16:32")
        stream = model.with_memory(memory).stream()
        output = stream.feed(tokens)
        assert output is None or np.all(np.isfinite(np.asarray(output)))


@pytest.mark.parametrize("name", KEY_PRESETS)
def test_presets_protect_what_they_say(name):
    config = at.preset(f"{name}+chunk=4:16")
    memory = config.kv_memory()
    state = read(replace(memory, present="compete"), *noise(10))
    rows = state.position.reshape(-1, 16)
    assert all(set(range(config.sinks)) <= set(row.tolist()) for row in rows)
    recent = set(range(24 - config.protect_recent, 24))
    assert all(recent <= set(row.tolist()) for row in rows)


@pytest.mark.parametrize("per_head", [False, True])
def test_trams_is_its_formula(per_head):
    """Of all that was read, the keys with the largest cos(k, 1) |k| stay: the paper's selection."""
    key, value, query = noise(seed=5)
    ones = np.ones(DIM)
    length = np.linalg.norm(key, axis=-1)
    cosine = key @ ones / (length * np.linalg.norm(ones))
    want = np.moveaxis(cosine * length, 1, -1)  # (batch, heads, time)
    want = want if per_head else want.mean(axis=1)
    state = read(at.KeyValueMemory(7, at.TRAMS(), per_head=per_head), key, value, query)
    best = np.sort(np.argsort(-want, axis=-1)[..., :7], axis=-1)
    assert kept(state) == best.tolist()
    for at_ in np.ndindex(*state.score.shape):
        exact = want[(*at_[:-1], state.position[at_])]
        np.testing.assert_allclose(state.score[at_], exact, rtol=1e-5)
