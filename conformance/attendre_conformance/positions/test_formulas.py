"""Published formulas of position schemes: every bucket, every slope, every frequency."""

from __future__ import annotations

import math

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.oracle.positions import alibi_slope, angles, t5_bucket
from attendre_conformance.positions.cases import EVERY, scheme_rule
from attendre_core.positions import alibi_slopes, bucket_of

pytestmark = pytest.mark.attendre_profile("laws")


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 16), (16, 32), (64, 256), (32, 100), (6, 9)]
)
def test_t5_buckets_equal_the_public_formula(
    buckets: int, max_distance: int, bidirectional: bool
) -> None:
    """Every distance falls into the bucket of T5's formula, which is in single precision.

    Specification, reading 32.
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

    Specification, reading 32.
    """
    known = {0: 0, -1: 1, -7: 7, -8: 8, -16: 10, -64: 14, -127: 15, -500: 15, 1: 17, 8: 24, 200: 31}
    for offset, want in known.items():
        got = bucket_of(offset, 32, 128, True)
        assert got == want, f"a key at offset {offset} is in bucket {got}, expected {want}"


@pytest.mark.parametrize("heads", range(1, 21))
def test_alibi_slopes_equal_the_public_rule(heads: int) -> None:
    """Slopes fall geometrically from head to head; odd counts borrow from the next power of two.

    Specification, reading 34.
    """
    got, want = alibi_slopes(heads), [alibi_slope(h, heads) for h in range(heads)]
    assert np.allclose(got, want, rtol=1e-12), f"{heads} heads: slopes {got}, expected {want}"


@pytest.mark.parametrize("name", [name for name in EVERY if isinstance(EVERY[name], at.RoPE)])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_frequencies_equal_the_published_formulas(name: str, head_dim: int) -> None:
    """Angles per position of RoPE, interpolated, NTK-aware and YaRN.

    Specification, reading 34.
    """
    encoding = EVERY[name]
    got = encoding.frequencies(head_dim)
    want = angles(scheme_rule(encoding), encoding.rotary_dim or head_dim)
    assert np.allclose(got, want, rtol=1e-9), f"{encoding}: frequencies {got}, expected {want}"


@pytest.mark.parametrize("length", [64, 2048, 4096])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_yarn_keeps_fast_and_interpolates_slow_rotations(length: int, factor: float) -> None:
    """Pairs that turn at least 32 times over the trained length are kept, at most once divided.

    Specification, reading 34; YaRN's section on interpolation by parts. All others lie in between.
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
