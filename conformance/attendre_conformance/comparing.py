"""Comparisons of arrays whose failures explain themselves: where, got what, expected what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

#: Decisions closer than this (relative) may go either way in float32; comparisons stop there.
NEAR = 1e-5
#: Tolerance of float32 scores and outputs.
RELATIVE = 2e-5
ABSOLUTE = 2e-5


def assert_close(got: Any, want: Any, what: str, scale: float = 1.0) -> None:
    """Check two arrays to float32 tolerance, relative to the largest number."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    if got.size == 0:
        return
    difference = np.abs(got.astype(np.float64) - want.astype(np.float64))
    size = max(1.0, float(np.max(np.abs(want))))
    worst = np.unravel_index(int(np.argmax(difference)), difference.shape)
    assert np.all(difference <= scale * (RELATIVE * size + ABSOLUTE)), (
        f"{what}: differs most at {tuple(int(i) for i in worst)}: got {got[worst]!r}, "
        f"expected {want[worst]!r}"
    )


def assert_same(got: Any, want: Any, what: str) -> None:
    """Check two nested tuples or dicts of arrays bit for bit."""
    if want is None or got is None:
        assert got is None, f"{what}: got {got!r}, expected {want!r}"
        assert want is None, f"{what}: got {got!r}, expected {want!r}"
        return
    if isinstance(want, Mapping):
        assert set(got) == set(want), f"{what}: {sorted(got)}, expected {sorted(want)}"
        for name in want:
            assert_same(got[name], want[name], f"{what}[{name!r}]")
        return
    if isinstance(want, tuple):
        names = getattr(want, "_fields", range(len(want)))
        assert len(got) == len(want), f"{what}: {len(got)} parts, expected {len(want)}"
        for name, one, other in zip(names, got, want, strict=True):
            assert_same(one, other, f"{what}.{name}")
        return
    got, want = np.asarray(got), np.asarray(want)
    assert got.dtype == want.dtype, f"{what}: dtype {got.dtype}, expected {want.dtype}"
    assert got.shape == want.shape, f"{what}: shape {got.shape}, expected {want.shape}"
    assert np.array_equal(got, want, equal_nan=want.dtype.kind == "f"), (
        f"{what}: got {got.tolist()}, expected {want.tolist()}"
    )
