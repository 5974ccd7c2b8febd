"""Position schemes against brute force: every pair of positions, every bucket, every slope."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_conformance import comparing, options
from attendre_conformance.layer.running import LayerRunner, by_index
from attendre_conformance.layer.texts import WHOLE, texts
from attendre_conformance.options import law
from attendre_conformance.oracle.positions import (
    Pair,
    alibi_slope,
    angles,
    full_attention,
    in_cache,
    pair_logit,
    t5_bucket,
)
from attendre_conformance.positions.cases import SCHEMES, scheme_rule, table_for
from attendre_conformance.running import compiles, from_numpy
from attendre_core.positions import Pairing, alibi_slopes, bucket_of

pytestmark = pytest.mark.attendre_profile("laws")

BATCH, GROUPS, SHARE, QUERIES, SLOTS, DIM = options.rows, 2, 2, 3, 5, 8
EVERY = {f"{family}-{n}": one for family in SCHEMES for n, one in enumerate(SCHEMES[family])}


@lru_cache(maxsize=64)
def encoder(backend: Any, encoding: Any, compiled: bool) -> Any:
    """Return a scheme as a function of arrays alone."""

    def encode(query: Any, key: Any, where: Any, table: Any) -> Any:
        return encoding.encode(query, key, Pairing(*where), table)

    return backend.compile(encode) if compiled else encode


def logits_of(backend: Any, encoding: Any, arrays: tuple[Any, ...], eager: bool = False) -> Any:
    """Apply a scheme to (query, key, positions and flags) and multiply: NumPy in and out."""
    query, key, *where = from_numpy(backend, arrays)
    table = from_numpy(backend, table_for(encoding, GROUPS * SHARE))
    function = encoder(backend, encoding, compiles(backend) and not eager)
    encoded = function(query, key, tuple(where), table)
    if encoded.logits is not None:
        return np.asarray(backend.to_numpy(encoded.logits))
    q, k = (np.asarray(backend.to_numpy(x)) for x in (encoded.query, encoded.key))
    logits = np.einsum("bgrqd,bgkd->bgrqk", q, k)
    return logits if encoded.bias is None else logits + np.asarray(backend.to_numpy(encoded.bias))


@st.composite
def pairings(draw: st.DrawFn, per_head: bool = False, far: int = 40) -> tuple[Any, ...]:
    """Draw queries, keys, and where they stand, in any order; some of them are not real."""
    seed = draw(st.integers(0, 2**32 - 1), label="seed of the numbers")
    rng = np.random.default_rng(seed)
    slots = (BATCH, GROUPS, SLOTS) if per_head else (BATCH, SLOTS)

    def numbers(below: int, shape: tuple[int, ...], label: str) -> Any:
        size = int(np.prod(shape))
        raw = draw(st.binary(min_size=size, max_size=size), label=label)
        return np.frombuffer(raw, dtype=np.uint8).reshape(shape) % below

    return (
        rng.standard_normal((BATCH, GROUPS, SHARE, QUERIES, DIM)).astype(np.float32),
        rng.standard_normal((BATCH, GROUPS, SLOTS, DIM)).astype(np.float32),
        numbers(far + 1, (BATCH, QUERIES), "query positions").astype(np.int32),
        numbers(4, (BATCH, QUERIES), "query flags") > 0,
        numbers(far + 1, slots, "key positions").astype(np.int32),
        numbers(4, slots, "key flags") > 0,
    )


@pytest.mark.parametrize("family", SCHEMES)
@law()
@given(data=st.data())
def test_scheme_equals_brute_force(backend: Any, family: str, data: st.DataObject) -> None:
    """The logit of every real pair is that of brute force, by token and by head.

    SPEC, rows 30-34. RoPE by rotation matrices, LM-Infinite by clamped distance, T5 by its buckets.
    """
    encoding = data.draw(st.sampled_from(SCHEMES[family]), label="encoding")
    per_head = data.draw(st.booleans(), label="positions per head")
    arrays = data.draw(pairings(per_head), label="pairs")
    got = logits_of(backend, encoding, arrays)
    query, key, query_at, query_valid, key_at, key_valid = arrays
    rule, table = scheme_rule(encoding), table_for(encoding, GROUPS * SHARE)
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
    """A scheme that is told that its keys are sorted gives the same logits as for keys that are.

    SPEC, row 31: LM-Infinite clamps pair by pair, however it goes about it.
    """
    near = data.draw(st.sampled_from((0, 1, 3, 6, 15, 50)), label="n_local")
    per_head = data.draw(st.booleans(), label="positions per head")
    query, key, *at_query, key_at, key_valid = data.draw(pairings(per_head, 30), label="pairs")
    # Sorted by position, what is not real behind all others.
    order = np.argsort(np.where(key_valid, key_at, 10**6), axis=-1, kind="stable")
    key_at = np.take_along_axis(key_at, order, axis=-1)
    key_valid = np.take_along_axis(key_valid, order, axis=-1)
    arrays = (query, key, *at_query, key_at, key_valid)
    encoding = at.LMInfinite(near)
    q, k, *rest = from_numpy(backend, arrays)
    encoded = encoding.encode(q, k, Pairing(*rest)._replace(key_sorted=True))
    got = np.asarray(backend.to_numpy(encoded.logits))
    want = logits_of(backend, encoding, arrays, eager=True)
    keys = key_valid[:, :, None, None, :] if per_head else key_valid[:, None, None, None, :]
    real = arrays[3][:, None, None, :, None] & keys
    comparing.assert_close(
        np.where(real, got, 0), np.where(real, want, 0), f"n_local={near}, sorted against not"
    )


@law()
@given(data=st.data())
def test_only_the_distance_counts(backend: Any, data: st.DataObject) -> None:
    """Moving all positions by the same amount changes no logit.

    SPEC, rows 31 and 32; the law of RoPE. In-cache numbers move with nothing.
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

    SPEC, row 31.
    """
    arrays = data.draw(pairings(), label="pairs")
    real = arrays[3][:, None, None, :, None] & arrays[5][:, None, None, None, :]
    for one, two in ((at.LMInfinite(100), at.RoPE()), (at.LMInfinite(0), at.NoPosition())):
        got, want = (logits_of(backend, scheme, arrays, eager=True) for scheme in (one, two))
        comparing.assert_close(
            np.where(real, got, 0), np.where(real, want, 0), f"{one} against {two}", scale=5
        )


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 16), (16, 32), (64, 256), (32, 100), (6, 9)]
)
def test_t5_buckets_equal_the_public_formula(
    buckets: int, max_distance: int, bidirectional: bool
) -> None:
    """Every distance falls into the bucket of T5's formula, which is in single precision.

    SPEC, row 32.
    """
    for offset in range(-2 * max_distance, 2 * max_distance + 1):
        got = bucket_of(offset, buckets, max_distance, bidirectional)
        want = t5_bucket(offset, buckets, max_distance, bidirectional)
        assert got == want, (
            f"{buckets} buckets up to {max_distance}, bidirectional={bidirectional}: a key at "
            f"offset {offset} is in bucket {got}, the formula says {want}"
        )


def test_t5_buckets_known_by_heart() -> None:
    """T5's own table: 32 buckets up to 128, keys before the query in the lower half.

    SPEC, row 32.
    """
    known = {0: 0, -1: 1, -7: 7, -8: 8, -16: 10, -64: 14, -127: 15, -500: 15, 1: 17, 8: 24, 200: 31}
    for offset, want in known.items():
        got = bucket_of(offset, 32, 128, True)
        assert got == want, f"a key at offset {offset} is in bucket {got}, expected {want}"


@pytest.mark.parametrize("heads", range(1, 21))
def test_alibi_slopes_equal_the_public_rule(heads: int) -> None:
    """Slopes fall geometrically from head to head; odd counts borrow from the next power of two.

    SPEC, row 34.
    """
    got, want = alibi_slopes(heads), [alibi_slope(h, heads) for h in range(heads)]
    assert np.allclose(got, want, rtol=1e-12), f"{heads} heads: slopes {got}, expected {want}"


@pytest.mark.parametrize("name", [name for name in EVERY if isinstance(EVERY[name], at.RoPE)])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_frequencies_equal_the_published_formulas(name: str, head_dim: int) -> None:
    """Angles per position of RoPE, interpolated, NTK-aware and YaRN.

    SPEC, row 34.
    """
    encoding = EVERY[name]
    got = encoding.frequencies(head_dim)
    want = angles(scheme_rule(encoding), encoding.rotary_dim or head_dim)
    assert np.allclose(got, want, rtol=1e-9), f"{encoding}: frequencies {got}, expected {want}"


@pytest.mark.parametrize("length", [64, 2048, 4096])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_yarn_keeps_fast_and_interpolates_slow_rotations(length: int, factor: float) -> None:
    """Pairs that turn at least 32 times over the trained length are kept, at most once divided.

    SPEC, row 34; YaRN's section on interpolation by parts. All others lie in between.
    """
    plain = at.RoPE().frequencies(128)
    got = at.RoPE(scaling=at.YaRN(factor, length)).frequencies(128)
    for n, (before, after) in enumerate(zip(plain, got, strict=True)):
        turns = length * before / (2 * math.pi)
        assert before / factor * (1 - 1e-9) <= after <= before * (1 + 1e-9), (
            f"pair {n}: {after} is not between {before / factor} and {before}"
        )
        if turns >= 32:
            assert math.isclose(after, before), f"pair {n} turns {turns:.1f} times: {after}"
        if turns <= 1:
            assert math.isclose(after, before / factor), f"pair {n}, {turns:.1f} turns: {after}"


@law()
@given(data=st.data())
def test_rotating_keeps_lengths_and_starts_at_zero(backend: Any, data: st.DataObject) -> None:
    """A rotation changes no length; position 0 changes nothing; features beyond rotary_dim stay.

    SPEC, row 34.
    """
    ropes = [one for one in EVERY.values() if isinstance(one, at.RoPE)]
    encoding = data.draw(st.sampled_from(ropes), label="encoding")
    place, size = st.integers(-60, 60), BATCH * 6
    places = data.draw(st.lists(place, min_size=size, max_size=size), label="positions")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    x = rng.standard_normal((BATCH, 6, DIM)).astype(np.float32)
    position = np.asarray(places, dtype=np.int32).reshape(BATCH, 6)
    turned = np.asarray(backend.to_numpy(encoding.rotate(*from_numpy(backend, (x, position)))))
    comparing.assert_close(
        np.sum(turned**2, axis=-1), np.sum(x**2, axis=-1), f"{encoding}: squared length", scale=2
    )
    still = position == 0
    comparing.assert_close(turned[still], x[still], f"{encoding}: at position 0")
    rest = encoding.rotary_dim or DIM
    comparing.assert_same(turned[..., rest:], x[..., rest:], f"{encoding}: features from {rest} on")


@law()
@given(data=st.data())
def test_learned_positions_look_rows_up(backend: Any, data: st.DataObject) -> None:
    """A position gets its row of the table; beyond the table the last one, or from the start again.

    SPEC, row 34 (BERT).
    """
    length = data.draw(st.sampled_from((1, 4, 7)), label="rows of the table")
    beyond: Any = data.draw(st.sampled_from(("last", "wrap")), label="beyond")
    place, size = st.integers(0, 30), BATCH * 3
    places = data.draw(st.lists(place, min_size=size, max_size=size), label="positions")
    table = np.arange(length * 3, dtype=np.float32).reshape(length, 3)
    position = np.asarray(places, dtype=np.int32).reshape(BATCH, 3)
    learned = at.LearnedPositions(length, beyond)
    got = np.asarray(backend.to_numpy(learned.embed(*from_numpy(backend, (table, position)))))
    rows = [p % length if beyond == "wrap" else min(p, length - 1) for p in places]
    want = np.stack([table[row] for row in rows]).reshape(BATCH, 3, 3)
    comparing.assert_same(got, want, f"{learned} at {places}")


BEYOND: tuple[tuple[int, Any], ...] = ((6, "last"), (4, "wrap"))


@law()
@given(data=st.data())
def test_learned_positions_give_full_attention(backend: Any, data: st.DataObject) -> None:
    """Added to queries and keys before a large layer, they give full attention with positions.

    SPEC, laws and row 34.
    """
    text = data.draw(texts(WHOLE, exact=False), label="text")
    length, beyond = data.draw(st.sampled_from(BEYOND), label="rows of the table, beyond")
    learned = at.LearnedPositions(length, beyond)
    table = np.random.default_rng(0).standard_normal((length, WHOLE.head_dim)).astype(np.float32)
    where = np.where(text.valid, text.position, 0).astype(np.int32)
    added = np.asarray(backend.to_numpy(learned.embed(*from_numpy(backend, (table, where)))))[
        :, :, None, :
    ]
    layer = at.AttendreLayer(at.KeyValueMemory(12), at.DataOnlyMemory(10), encoding=learned)
    fields = {
        "query": np.where(text.valid[..., None, None], text.query + added, 0),
        "key": np.where(text.valid[..., None, None], text.key + added, 0),
    }
    _, outputs = LayerRunner(backend, layer).run(text.but(**fields), WHOLE.seq)
    for b in range(WHOLE.batch):
        number = [
            int(p) % length if beyond == "wrap" else min(int(p), length - 1) for p in where[b]
        ]
        rows = table[number].astype(np.float64)[:, None, :]
        want = full_attention(
            text.query[b] + rows, text.key[b] + rows, text.value[b], where[b], text.valid[b]
        )
        got = by_index(outputs, WHOLE.length)[b]
        comparing.assert_close(got, want, f"row {b}: output by position")


def test_schemes_refuse_what_they_cannot_do(backend: Any) -> None:
    """Odd dimensions, tables of another size, and impossible numbers are named.

    House style: what was wrong, what was expected.
    """
    query = backend.from_numpy(np.zeros((1, 1, 2, 1, 4), dtype=np.float32))
    key = backend.from_numpy(np.zeros((1, 1, 1, 4), dtype=np.float32))
    place = backend.from_numpy(np.zeros((1, 1), dtype=np.int32))
    pairing = Pairing(place, place == 0, place, place == 0)
    with pytest.raises(at.ShapeError, match=r"nothing.*\(32, 2\).*encoding_params"):
        at.T5Bias().encode(query, key, pairing)
    table = backend.from_numpy(np.zeros((32, 3), dtype=np.float32))
    with pytest.raises(at.ShapeError, match=r"\(32, 3\).*\(32, 2\)"):
        at.T5Bias().encode(query, key, pairing, table)
    with pytest.raises(at.ConfigError, match="6 of 4"):
        at.RoPE(rotary_dim=6).encode(query, key, pairing)
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
    ):
        with pytest.raises(at.ConfigError, match=r"expected|leave no room"):
            wrong()
