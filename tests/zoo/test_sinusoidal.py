"""Sinusoidal positions against the formula in double precision, near and far."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend
from attendre_core.positions.sinusoidal import SinusoidalPositions

POSITIONS = [0, 1, 2, 63, 64, 511, 4095, 4096, 100_003, 2**24 - 2]


@pytest.mark.parametrize(
    ("dim", "steps", "first"), [(8, None, 0), (7, None, 0), (32, 15.0, 1), (1, None, 1)]
)
def test_the_formula_holds_at_any_distance(dim, steps, first, library):
    found = backend(library)
    position = found.from_numpy(np.asarray([POSITIONS], dtype=np.int32))
    got = SinusoidalPositions(dim, steps, first).embed(position)
    got = np.asarray(found.to_numpy(got))
    frequency = 10000.0 ** (-np.arange((dim + 1) // 2) / (steps or dim / 2))
    angle = (np.asarray(POSITIONS, dtype=np.float64)[:, None] + first) * frequency
    want = np.concatenate([np.sin(angle), np.cos(angle)[:, : dim // 2]], axis=1)
    assert got.shape == (1, len(POSITIONS), dim)
    assert got.dtype == np.float32
    assert np.abs(got[0] - want).max() < 1e-6


@pytest.mark.parametrize(("dim", "steps"), [(0, None), (8, 0.0), (8, -1.0), (8, float("nan"))])
def test_impossible_sizes_are_refused(dim, steps):
    with pytest.raises(at.ConfigError, match="SinusoidalPositions: dim is"):
        SinusoidalPositions(dim, steps)
