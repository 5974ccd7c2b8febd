"""Policies of other papers: what they cost, and the laws that their docstrings name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops
from attendre_core.evaluation import load_tiny
from attendre_core.policies import view as views
from attendre_core.presets import SCORE_PRESETS

B, S, G, H, D = 2, 6, 2, 4, 4


def chunks(count: int = 5, seed: int = 0, seq: int = S) -> list[tuple[np.ndarray, ...]]:
    """Return keys, values and queries."""
    rng = np.random.default_rng(seed)
    sizes = ((B, seq, G, D), (B, seq, G, D), (B, seq, H, D))
    return [tuple(rng.standard_normal(s, dtype=np.float32) for s in sizes) for _ in range(count)]


def run(policy: at.Policy, stream: list[Any], size: int = 16, params: Any = None, **options: Any):
    """Read a stream causally; returns the state."""
    memory = at.KeyValueMemory(size, policy, **{"present": "visible", **options})
    state = memory.init(batch=B, heads=H, kv_heads=G, head_dim=D, chunk=stream[0][0].shape[1])
    for key, value, query in stream:
        state, _ = memory.insert(state, key, value, policy_params=params)
        state, _ = memory.attend(state, query, causal=True, policy_params=params)
    return state


def scores(state: Any) -> dict[tuple[int, ...], float]:
    """Return the score of every valid entry by row (and head) and position."""
    return {
        (*place[:-1], int(state.position[place])): float(state.score[place])
        for place in map(tuple, np.argwhere(state.valid))
    }


def same(one: Any, other: Any, factor: float = 1.0) -> None:
    """Check that two states hold the same entries with the same scores."""
    got, want = scores(one), scores(other)
    assert got.keys() == want.keys()
    for place, score in want.items():
        assert got[place] == pytest.approx(factor * score, rel=1e-4, abs=1e-6), place


# ------------------------------------------------------------------ what they cost

READING = {
    "snapkv": at.SnapKV(window=2),
    "defensive": at.Defensive(window=2, value_norm=True),
    "dropkv": at.DropKV(window=2),
}


def _forbid_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("pairs were computed for the policy")

    monkeypatch.setattr(views, "known", refuse)
    for name in ("pool_pairs", "sum_logits"):
        monkeypatch.setattr(ops, name, refuse)


@pytest.mark.parametrize("present", ["compete", "visible"])
def test_value_norm_costs_no_pairs(monkeypatch: pytest.MonkeyPatch, present: Any) -> None:
    _forbid_pairs(monkeypatch)
    assert run(at.ValueNorm(), chunks(), present=present).valid.any()


@pytest.mark.parametrize("policy", [*READING.values(), at.H2O(value_norm=True)])
def test_others_are_noticed(monkeypatch: pytest.MonkeyPatch, policy: at.Policy) -> None:
    """The test above would notice pairs."""
    _forbid_pairs(monkeypatch)
    with pytest.raises(AssertionError, match="pairs were computed"):
        run(policy, chunks())


@pytest.mark.parametrize("name", READING)
def test_a_window_costs_the_pairs_of_its_queries(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    seen = set()
    plain = {"known": views.known, "pool_pairs": ops.pool_pairs}

    def watched(which: str) -> Any:
        def call(pairs: Any, *arguments: Any) -> Any:
            seen.add(pairs.query_valid.shape[1])
            return plain[which](pairs, *arguments)

        return call

    monkeypatch.setattr(views, "known", watched("known"))
    monkeypatch.setattr(ops, "pool_pairs", watched("pool_pairs"))
    run(READING[name], chunks())
    assert seen == {2}
    run(replace(READING[name], window=None), chunks())
    assert seen == {2, S}


def test_the_last_queries_are_the_last_valid_ones() -> None:
    """Padding anywhere in a chunk does not count towards the window."""
    found = []

    class Watching(at.Policy):
        def observe(self, stored: at.Stored, attention: at.Attention) -> None:
            last = attention.last(3)
            found.append((last.position, last.valid, last.query, last.weights, attention.weights))

    memory = at.KeyValueMemory(8, Watching())
    state = memory.init(batch=B, heads=H, kv_heads=G, head_dim=D)
    key, value, query = chunks(1)[0]
    valid = np.asarray([[1, 1, 0, 1, 0, 1], [0, 0, 1, 0, 0, 1]], dtype=bool)
    where = np.broadcast_to(np.arange(S, dtype=np.int32), (B, S))
    state, _ = memory.insert(state, key, value)
    memory.attend(state, query, position=where, valid=valid)
    position, real, asked, weights, every = found[0]
    assert real.tolist() == [[True] * 3, [False, True, True]]
    assert position[0].tolist() == [1, 3, 5]
    assert position[1, 1:].tolist() == [2, 5]
    grouped = np.moveaxis(query.reshape(B, S, G, H // G, D), 1, 3)
    np.testing.assert_allclose(asked[0], grouped[0][:, :, [1, 3, 5]], rtol=1e-6)
    np.testing.assert_allclose(weights[0], every[0][:, :, [1, 3, 5]], rtol=1e-6)
    np.testing.assert_allclose(weights[1][:, :, 1:], every[1][:, :, [2, 5]], rtol=1e-6)
    assert not weights[1][:, :, 0].any()


# ------------------------------------------------------------------ laws


@pytest.mark.parametrize("options", [{}, {"per_head": True}, {"present": "compete"}])
def test_snapkv_without_neighbours_is_lra(options: Any) -> None:
    policy = at.SnapKV(window=None, kernel=1)
    lra = at.LRA("sum", at.InitialScore(0.0), score="softmax", heads="mean")
    same(run(policy, chunks(), **options), run(lra, chunks(), **options))


def test_snapkv_keeps_what_is_next_to_what_is_attended_to() -> None:
    """One entry gets all the attention; its neighbours stay with it, others go."""
    stream = chunks(4)
    for number, (key, _, query) in enumerate(stream):
        key[:], query[:] = 0, 0
        query[..., 0] = 40.0
        if number == 0:
            key[:, 3, :, 0] = 1.0
    left = run(at.SnapKV(kernel=3), stream, size=3)
    assert all({2, 3, 4} <= set(row.tolist()) for row in left.position)
    alone = run(at.SnapKV(kernel=1), stream, size=3)
    assert all(3 in row and 2 not in row for row in alone.position)


@pytest.mark.parametrize("per_head", [False, True])
def test_defensive_raises_lra_to_its_mean(per_head: bool) -> None:
    stream = chunks(1)
    got = run(at.Defensive(window=None), stream, per_head=per_head)
    lra = run(at.LRA("max", score="softmax"), stream, per_head=per_head)
    real = np.where(lra.valid, lra.score, np.nan)
    mean = np.nanmean(real, axis=-1, keepdims=True)
    assert (real < mean).any()
    assert (real > mean).any()
    expected = np.where(lra.valid, np.maximum(real, mean), 0)
    np.testing.assert_allclose(np.where(got.valid, got.score, 0), expected, rtol=1e-5)
    with_norm = run(at.Defensive(window=None, value_norm=True), stream, per_head=per_head)
    norm = np.linalg.norm(with_norm.value, axis=-1)
    norm = norm if per_head else norm.mean(axis=1)
    got_norm = np.where(with_norm.valid, with_norm.score, 0)
    np.testing.assert_allclose(got_norm, np.where(got.valid, got.score * norm, 0), rtol=1e-5)


@pytest.mark.parametrize("per_head", [False, True])
def test_salience_is_peaks_and_what_entries_are(per_head: bool) -> None:
    stream = chunks(1)
    peaks = run(at.Defensive(window=None), stream, per_head=per_head)  # raised to their mean
    got = run(at.Salience(decay=50.0, share=0.0), stream, per_head=per_head)
    real = np.where(got.valid, got.score, np.nan)
    raised = np.maximum(real, np.nanmean(real, axis=-1, keepdims=True))
    np.testing.assert_allclose(raised, np.where(got.valid, peaks.score, np.nan), rtol=1e-5)
    with_share = run(at.Salience(decay=50.0, contrast=0.0), stream, per_head=per_head)
    norm = np.linalg.norm(with_share.value, axis=-1)
    norm = np.where(with_share.valid, norm if per_head else norm.mean(axis=1), 0)
    total = np.nansum(real, axis=-1, keepdims=True) / norm.sum(axis=-1, keepdims=True)
    expected = np.where(with_share.valid, np.nan_to_num(real) + total * norm, 0)
    np.testing.assert_allclose(np.where(with_share.valid, with_share.score, 0), expected, rtol=1e-5)
    stream = chunks(4)
    for _, value, _ in stream:
        value *= 2.0
    twice = run(at.Salience(), stream, per_head=per_head)
    once = run(at.Salience(), chunks(4), per_head=per_head)
    np.testing.assert_array_equal(twice.position, once.position)
    np.testing.assert_allclose(twice.score, once.score, rtol=1e-5)


def test_defensive_weighs_what_a_value_adds_to_the_output() -> None:
    """The projections of the query heads of a K/V head are averaged."""
    stream = chunks(1)
    weights = np.random.default_rng(3).standard_normal((H, D, 5), dtype=np.float32)
    plain = run(at.Defensive(window=None), stream)
    policy = at.Defensive(window=None, output_norm=True)
    got = run(policy, stream, params={"output": weights})
    for row, slot in np.argwhere(plain.valid):
        value = plain.value[row, :, slot]
        added = [np.abs(value[head // (H // G)] @ weights[head]).sum() for head in range(H)]
        assert got.score[row, slot] == pytest.approx(
            plain.score[row, slot] * np.mean(added), rel=1e-4
        )
    with pytest.raises(at.ConfigError, match=r"output_norm needs.*NoneType.*policy_params=\{"):
        run(policy, stream)


def test_dropkv_does_not_see_what_all_values_share() -> None:
    """Nothing changes when one vector is added to all values, while no query sees one alone."""
    stream = chunks(1)
    moved = [(key, value + np.float32(3.0), query) for key, value, query in stream]
    memory = at.KeyValueMemory(16, at.DropKV())

    def state_after(parts: Any) -> Any:
        state = memory.init(batch=B, heads=H, kv_heads=G, head_dim=D)
        state, _ = memory.insert(state, *parts[:2])
        return memory.attend(state, parts[2])[0]

    one, other = state_after(stream[0]), state_after(moved[0])
    np.testing.assert_allclose(other.score[other.valid], one.score[one.valid], rtol=2e-3)


def test_dropkv_is_exact_where_one_entry_has_almost_all_weight() -> None:
    """Differences of almost equal numbers are avoided: float32 agrees with float64."""
    states = []
    for kind in (np.float32, np.float64):
        memory = at.KeyValueMemory(8, at.DropKV())
        state = memory.init(batch=1, heads=1, head_dim=D, dtype=kind)
        rng = np.random.default_rng(1)
        key, value, query = rng.standard_normal((3, 1, 4, 1, D)).astype(np.float32).astype(kind)
        key[:, 0], query[:] = 1.0, 9.0
        key[:, 1:] -= 1.0
        state, _ = memory.insert(state, key, value)
        states.append(memory.attend(state, query)[0])
    assert states[1].score.max() > 0.1
    np.testing.assert_allclose(states[0].score, states[1].score, rtol=1e-4, atol=1e-7)


def test_value_norm_does_not_depend_on_the_chunk_length() -> None:
    whole = chunks(1, seq=24)[0]
    kept = []
    for length in (1, 4, 24):
        parts = [tuple(x[:, i : i + length] for x in whole) for i in range(0, 24, length)]
        state = run(at.ValueNorm(), parts, size=8, present="compete")
        kept.append(np.sort(state.position, axis=-1).tolist())
    assert kept[0] == kept[1] == kept[2]
    norm = np.linalg.norm(whole[1], axis=-1).mean(axis=-1)
    assert kept[0] == np.sort(np.argsort(norm, axis=1)[:, -8:], axis=1).tolist()


@pytest.mark.parametrize("per_head", [False, True])
def test_h2o_weighs_values_by_their_length(per_head: bool) -> None:
    stream = chunks()
    units = [(k, v / np.linalg.norm(v, axis=-1, keepdims=True), q) for k, v, q in stream]
    plain = run(at.H2O(), units, per_head=per_head)
    same(run(at.H2O(value_norm=True), units, per_head=per_head), plain)
    longer = [(k, 3 * v, q) for k, v, q in units]
    same(run(at.H2O(value_norm=True), longer, per_head=per_head), plain, factor=3.0)
    louder = [(k, v * (50 if i == 2 else 1), q) for i, (k, v, q) in enumerate(units)]
    policies = (at.H2O(value_norm=True), at.H2O())
    one, other = (run(policy, louder, size=S, per_head=per_head) for policy in policies)
    loud = range(2 * S, 3 * S)
    assert np.isin(one.position, loud).sum() > 2 * np.isin(other.position, loud).sum()


# ------------------------------------------------------------------ mistakes, and models


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: at.SnapKV(kernel=4), r"SnapKV: kernel is 4, expected an odd number"),
        (lambda: at.SnapKV(window=0), r"SnapKV: window is 0, expected .* or None"),
        (lambda: at.Defensive(window=-1), r"Defensive: window is -1"),
        (lambda: at.DropKV(window=0), r"DropKV: window is 0"),
        (lambda: at.Salience(decay=-1.0), r"Salience: decay is -1.0, expected 0 or more"),
        (lambda: at.Salience(contrast=float("nan")), r"Salience: contrast is nan"),
    ],
)
def test_mistakes_are_explained(make: Any, message: str) -> None:
    with pytest.raises(at.ConfigError, match=message):
        make()


def test_presets_read_with_a_model() -> None:
    """Each published score is a memory of a model, and each chooses something of its own."""
    model = load_tiny("prefix-lm")
    text = np.random.default_rng(0).integers(1, 40, (1, 200)).tolist()[0]
    outputs = {}
    for name in ("MT+visible", *SCORE_PRESETS):
        outputs[name] = model.with_memory(at.preset(f"{name}+chunk=16:48")).encode(text)
        assert np.isfinite(outputs[name]).all(), name
    last = {name: np.asarray(output)[..., -1, :].tobytes() for name, output in outputs.items()}
    assert len(set(last.values())) == len(last)
