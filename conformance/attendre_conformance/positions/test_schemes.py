"""Position schemes against brute force: every pair of positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import Pair, in_cache, pair_logit
from attendre_conformance.positions.cases import EVERY, SCHEMES, scheme_rule, table_for
from attendre_conformance.positions.pairs import (
    BATCH,
    DIM,
    GROUPS,
    QUERIES,
    SHARE,
    SLOTS,
    logits_of,
    pairings,
    pairs_of,
)
from attendre_conformance.running import from_numpy
from attendre_core import ops
from attendre_core.positions import Places

pytestmark = pytest.mark.attendre_profile("laws")


@pytest.mark.parametrize("family", SCHEMES)
@law()
@given(data=st.data())
def test_scheme_equals_brute_force(backend: Any, family: str, data: st.DataObject) -> None:
    """The logit of every real pair is that of brute force, by token and by head.

    Specification, readings 30-34. RoPE by rotation matrices, LM-Infinite by clamped distance, T5 by
    its buckets.
    """
    encoding = data.draw(st.sampled_from(SCHEMES[family]), label="encoding")
    per_head = data.draw(st.booleans(), label="positions per head")
    arrays = data.draw(pairings(per_head), label="pairs")
    got = logits_of(backend, encoding, arrays)
    query, key, query_at, query_valid, key_at, key_valid = arrays
    rule, table = scheme_rule(encoding), table_for(encoding, GROUPS * SHARE, DIM)
    for b, g, r, i, j in np.ndindex(BATCH, GROUPS, SHARE, QUERIES, SLOTS):
        place, real = (key_at[b, g], key_valid[b, g]) if per_head else (key_at[b], key_valid[b])
        if not (query_valid[b, i] and real[j]):
            continue
        at_, to, inside = int(query_at[b, i]), int(place[j]), rule
        if rule.kind == "in_cache" and rule.inner is not None:
            at_, to = in_cache(at_, to, place[real].tolist())
            inside = rule.inner
        vectors = query[b, g, r, i].astype(np.float64), key[b, g, j].astype(np.float64)
        pair = Pair(*vectors, at_, to, g * SHARE + r, GROUPS * SHARE)
        want = pair_logit(inside, pair, 1.0, table)
        assert abs(got[b, g, r, i, j] - want) <= 1e-4, (
            f"{encoding}: query at {query_at[b, i]}, key at {place[j]}, row {b}, K/V head {g}, "
            f"query head {r}: logit {got[b, g, r, i, j]!r}, brute force {want!r}"
        )


@law()
@given(data=st.data())
def test_sorted_keys_change_nothing(backend: Any, data: st.DataObject) -> None:
    """Keys sorted by position get the logits, sums and outputs that they get in any other order.

    Specification, reading 31: LM-Infinite clamps pair by pair, however a kernel goes about it.
    """
    near = data.draw(st.sampled_from((0, 1, 3, 6, 15, 50)), label="n_local")
    per_head = data.draw(st.booleans(), label="positions per head")
    arrays = data.draw(pairings(per_head, 30), label="pairs")
    *_, key_at, key_valid = arrays
    # What is not real is behind all others.
    order = np.argsort(np.where(key_valid, key_at, 10**6), axis=-1, kind="stable")
    by_head = order if per_head else np.repeat(order[:, None, :], GROUPS, axis=1)
    one = everything_of(backend, near, arrays)
    query, key, query_at, query_valid, _, _ = arrays
    two = everything_of(
        backend,
        near,
        (
            query,
            np.take_along_axis(key, by_head[..., None], axis=2),
            query_at,
            query_valid,
            np.take_along_axis(key_at, order, axis=-1),
            np.take_along_axis(key_valid, order, axis=-1),
        ),
    )
    where = f"LMInfinite({near}), sorted against not"
    index = by_head[:, :, None, None, :]
    want = np.take_along_axis(one[0], np.broadcast_to(index, one[0].shape), axis=-1)
    comparing.assert_close(two[0], want, f"{where}: logits")
    want = np.take_along_axis(one[1], np.broadcast_to(index[:, :, 0], one[1].shape), axis=-1)
    comparing.assert_close(two[1], want, f"{where}: sums of logits")
    comparing.assert_close(two[2], one[2], f"{where}: outputs")


def everything_of(backend: Any, near: int, arrays: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """Return logits of real pairs, their sums over queries, and outputs of real queries."""
    query, key, *where = from_numpy(backend, arrays)
    pairs = pairs_of(at.LMInfinite(near), query, key, tuple(where), None)
    real = np.asarray(backend.to_numpy(ops.allowed_pairs(pairs)))
    logits, sums, output = (
        np.asarray(backend.to_numpy(x))
        for x in (ops.logits(pairs), ops.sum_logits(pairs), ops.attend(pairs, key))
    )
    return (
        np.where(real, logits, 0),
        np.where(np.any(real, axis=3), sums, 0),
        np.where(arrays[3][:, None, None, :, None], output, 0),
    )


@law()
@given(data=st.data())
def test_only_the_distance_counts(backend: Any, data: st.DataObject) -> None:
    """Moving all positions by the same amount changes no logit.

    Specification, readings 31 and 32; the law of RoPE. In-cache numbers move with nothing.
    """
    encoding = data.draw(st.sampled_from(list(EVERY.values())), label="encoding")
    by = data.draw(st.sampled_from((1, 17)), label="moved by")
    query, key, query_at, query_valid, key_at, key_valid = data.draw(pairings(), label="pairs")
    here = logits_of(backend, encoding, (query, key, query_at, query_valid, key_at, key_valid))
    there = logits_of(
        backend,
        encoding,
        (query, key, query_at + np.int32(by), query_valid, key_at + np.int32(by), key_valid),
    )
    real = query_valid[:, None, None, :, None] & key_valid[:, None, None, None, :]
    comparing.assert_close(
        np.where(real, there, 0), np.where(real, here, 0), f"{encoding}, moved by {by}", scale=5
    )


@law()
@given(data=st.data())
def test_limits_of_lm_infinite(backend: Any, data: st.DataObject) -> None:
    """A band wider than the text is plain RoPE; a band of nothing knows no positions.

    Specification, reading 31.
    """
    arrays = data.draw(pairings(), label="pairs")
    real = arrays[3][:, None, None, :, None] & arrays[5][:, None, None, None, :]
    for one, two in ((at.LMInfinite(100), at.RoPE()), (at.LMInfinite(0), at.NoPosition())):
        got, want = (logits_of(backend, scheme, arrays, eager=True) for scheme in (one, two))
        comparing.assert_close(
            np.where(real, got, 0), np.where(real, want, 0), f"{one} against {two}", scale=5
        )


@law()
@given(data=st.data())
def test_rotating_keeps_lengths_and_starts_at_zero(backend: Any, data: st.DataObject) -> None:
    """A rotation changes no length; position 0 changes nothing; features beyond rotary_dim stay.

    Specification, reading 34.
    """
    ropes = [one for one in EVERY.values() if isinstance(one, at.RoPE)]
    encoding = data.draw(st.sampled_from(ropes), label="encoding")
    place, size = st.integers(-60, 60), BATCH * 6
    places = data.draw(st.lists(place, min_size=size, max_size=size), label="positions")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    x = rng.standard_normal((BATCH, 6, DIM)).astype(np.float32)
    position = np.asarray(places, dtype=np.int32).reshape(BATCH, 6)
    rotated = np.asarray(backend.to_numpy(encoding.rotate(*from_numpy(backend, (x, position)))))
    comparing.assert_close(
        np.sum(rotated**2, axis=-1), np.sum(x**2, axis=-1), f"{encoding}: squared length", scale=2
    )
    still = position == 0
    comparing.assert_close(rotated[still], x[still], f"{encoding}: at position 0")
    rest = encoding.rotary_dim or DIM
    comparing.assert_same(
        rotated[..., rest:], x[..., rest:], f"{encoding}: features from {rest} on"
    )


def test_schemes_refuse_what_they_cannot_do(backend: Any) -> None:
    """Odd dimensions, tables of another size, and impossible numbers are named."""
    query = backend.from_numpy(np.zeros((1, 1, 2, 1, 4), dtype=np.float32))
    key = backend.from_numpy(np.zeros((1, 1, 1, 4), dtype=np.float32))
    place = backend.from_numpy(np.zeros((1, 1), dtype=np.int32))
    real = place == 0
    pairing = Places(place[:, None, None, :], place[:, None, :], real, real[:, None, :])
    with pytest.raises(at.ShapeError, match=r"nothing.*\(32, 2\).*encoding_params"):
        at.T5Bias().encode(query, key, pairing)
    table = backend.from_numpy(np.zeros((32, 3), dtype=np.float32))
    with pytest.raises(at.ShapeError, match=r"\(32, 3\).*\(32, 2\)"):
        at.T5Bias().encode(query, key, pairing, table)
    with pytest.raises(at.ShapeError, match=r"missing.*\(8, 2, 4\).*encoding_params"):
        at.TransformerXLPositions(6).encode(query, key, pairing)
    with pytest.raises(at.ShapeError, match=r"\(32, 3\).*\(8, 2, 4\)"):
        at.TransformerXLPositions(6).encode(query, key, pairing, table)
    with pytest.raises(at.ShapeError, match=r"encoding_params.*32, 3.*\(6, 2, 4\)"):
        at.DisentangledPositions(3, terms=("p2c",)).encode(query, key, pairing, table)
    with pytest.raises(at.ConfigError, match="6 of 4"):
        ops.logits(pairs_of(at.RoPE(rotary_dim=6), query, key, (place, real, place, real), None))
    for wrong in (
        lambda: at.RoPE(base=0.0),
        lambda: at.RoPE(rotary_dim=3),
        lambda: at.LMInfinite(-1),
        lambda: at.T5Bias(2, 128),
        lambda: at.T5Bias(32, 4),
        lambda: at.NTK(0.0),
        lambda: at.Interpolation(float("nan")),
        lambda: at.YaRN(2.0, 0),
        lambda: at.LearnedPositions(0),
        lambda: at.TransformerXLPositions(5),
        lambda: at.TransformerXLPositions(4, base=0.0),
        lambda: at.DisentangledPositions(0),
        lambda: at.DisentangledPositions(16, 7),
        lambda: at.DisentangledPositions(4, 8),
        lambda: at.DisentangledPositions(4, terms=("p2c", "c2p")),
    ):
        with pytest.raises(at.ConfigError, match=r"expected|leave no room"):
            wrong()
