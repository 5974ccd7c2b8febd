"""Unlimiformer's overlapping windows: the middle half of each is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.zoo.overlapping import windows_of

ROW = np.random.default_rng(0).integers(4, 60, 37).tolist()


@given(st.integers(1, 200), st.integers(1, 12))
def test_every_position_is_kept_once_with_a_quarter_around_it(length: int, quarter: int) -> None:
    window = 4 * quarter
    found = windows_of(length, window)
    assert [place for _, first, last in found for place in range(first, last)] == list(
        range(length)
    )
    for start, first, last in found:
        assert 0 <= start <= first < last <= min(start + window, length)
        assert first == 0 or first - start >= quarter
        assert last == length or start + window - last >= quarter


@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_outputs_are_those_of_the_windows(library: str) -> None:
    """Windows that start every half window, by hand: positions 0-5, then four at a time."""
    pytest.importorskip(library)
    model = load_tiny("encoder-decoder", backend=library)
    hidden, valid = model.overlapping([ROW, ROW[:11]], window=8).encoded()
    numpy = model.backend.to_numpy
    got, valid = np.asarray(numpy(hidden)), np.asarray(numpy(valid))
    assert valid.sum(axis=1).tolist() == [37, 11]
    want = [np.asarray(numpy(model.encode(ROW[:8])))[0, :6]]
    for start in range(4, 28, 4):
        want.append(np.asarray(numpy(model.encode(ROW[start : start + 8])))[0, 2:6])
    want.append(np.asarray(numpy(model.encode(ROW[28:36])))[0, 2:6])
    want.append(np.asarray(numpy(model.encode(ROW[29:37])))[0, 5:])
    np.testing.assert_allclose(got[0], np.concatenate(want), rtol=1e-5, atol=1e-5)
    short = np.asarray(numpy(model.encode(ROW[3:11])))[0]
    np.testing.assert_allclose(got[1, 10:11], short[7:], rtol=1e-5, atol=1e-5)


def test_a_window_of_the_whole_input_is_full_attention() -> None:
    model = load_tiny("encoder-decoder")
    whole = model.overlapping([ROW, ROW[:11]], window=40)
    assert whole.generate(5) == model.generate([ROW, ROW[:11]], 5)


def test_each_head_attends_to_its_best() -> None:
    """With K = 1 of the preset, the logits are those of one output per head."""
    model = load_tiny("encoder-decoder", at.preset("Unlimiformer", 16, chunk=16, top_k=1))
    few = model.overlapping(ROW, window=16).writer(1)[1]
    every = model.with_memory(None).overlapping(ROW, window=16).writer(1)[1]
    assert not np.allclose(few, every)
    all_of_them = model.with_memory(at.preset("Unlimiformer", 64, chunk=16, top_k=64))
    np.testing.assert_allclose(
        all_of_them.overlapping(ROW, window=16).writer(1)[1], every, rtol=1e-5, atol=1e-5
    )


def test_mistakes_are_named() -> None:
    model = load_tiny("encoder-decoder")
    with pytest.raises(at.ConfigError, match="multiple of 4"):
        model.overlapping(ROW, window=6)
    with pytest.raises(at.ConfigError, match="only an encoder-decoder"):
        load_tiny("prefix-lm").overlapping(ROW, window=8)
