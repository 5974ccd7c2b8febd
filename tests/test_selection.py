"""Ops against plain definitions, kernels against the generic path, and the stated recall."""

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import backend

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]


@pytest.fixture(params=LIBRARIES)
def library(request):
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_lowest_is_a_lexicographic_sort(library, count, generic):
    rng = np.random.default_rng(count)
    score = rng.integers(-3, 3, size=(5, 40)).astype(np.float32) / 2
    score[0, :4] = [np.inf, -np.inf, -0.0, 0.0]
    order = rng.permuted(np.tile(np.arange(-7, 33, dtype=np.int32), (5, 1)), axis=1)
    expected = np.lexsort((order, score + 0.0), axis=-1)[:, :count]
    args = library.from_numpy(score), library.from_numpy(order), count
    if generic:
        with at.force_generic():
            found = ops.lowest(*args)
    else:
        found = ops.lowest(*args)
    assert library.to_numpy(found).tolist() == expected.tolist()


@pytest.mark.parametrize("k", [1, 7, 40])
def test_kth_largest(library, k):
    rng = np.random.default_rng(k)
    x = np.concatenate(
        [rng.normal(size=(6, 40)), rng.integers(-2, 2, size=(6, 40)), np.zeros((1, 40))]
    ).astype(np.float32)
    x[0, :5] = [np.inf, -np.inf, 3e38, -3e38, 1e-42]
    found = library.to_numpy(ops.kth_largest(library.from_numpy(x), k))
    assert found.tolist() == np.sort(x, axis=-1)[:, 40 - k : 41 - k].tolist()


@pytest.mark.parametrize("k", [1, 5, 16])
def test_selected_are_those_that_top_k_lists(library, k):
    rng = np.random.default_rng(k)
    x = rng.integers(-2, 3, size=(20, 16)).astype(np.float32)
    allowed = rng.random((20, 16)) < 0.7
    order = np.tile(rng.permutation(16).astype(np.int32), (20, 1))
    masked = np.where(allowed, x, -np.inf).astype(np.float32)
    _, index = ops.top_k(library.from_numpy(masked), k, library.from_numpy(order))
    listed = np.zeros((20, 16), dtype=bool)
    np.put_along_axis(listed, library.to_numpy(index), True, axis=1)
    selected = ops.select_top_k(
        *map(library.from_numpy, (x, allowed)), k, library.from_numpy(order)
    )
    assert (library.to_numpy(selected) == (listed & allowed)).all()


def test_softmax_of_nothing_is_zero(library):
    x = np.asarray([[np.nan, 1.0], [2.0, 2.0]], dtype=np.float32)
    allowed = np.asarray([[False, False], [True, True]])
    found = ops.masked_softmax(library.from_numpy(x), library.from_numpy(allowed))
    assert library.to_numpy(found).tolist() == [[0.0, 0.0], [0.5, 0.5]]


def recall(logits, k, passes):
    allowed = np.ones(logits.shape, dtype=bool)
    marked = ops.approximate_top_k(logits, allowed, k, passes)
    threshold = np.sort(logits, axis=-1)[:, -k, None]
    assert (logits[marked] >= np.broadcast_to(threshold, logits.shape)[marked]).all()
    assert (marked.sum(axis=-1) <= k).all()
    return marked.sum(axis=-1).mean() / k


@pytest.mark.parametrize(("passes", "stated"), [(8, 0.90), (12, 0.99), (16, 0.999)])
def test_stated_recall_of_the_approximate_mode(passes, stated):
    """The figures of docs/concepts.md: K = 128 of 2,048, with and without an outlier a row."""
    rng = np.random.default_rng(0)
    smooth = rng.normal(size=(200, 2048)).astype(np.float32)
    outlier = smooth.copy()
    outlier[:, 0] = 20.0
    assert min(recall(smooth, 128, passes), recall(outlier, 128, passes)) >= stated


#: Rows for which a guess of the threshold is right, wrong or useless, and rows full of ties.
SPREADS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(size=shape) ** 3,
    "few values": lambda rng, shape: rng.integers(-2, 3, size=shape).astype(float),
    "two heaps": lambda rng, shape: rng.normal(size=shape) + 1e4 * (np.arange(shape[-1]) > 99),
    "flat at first": lambda rng, shape: rng.normal(size=shape) * (np.arange(shape[-1]) > 99),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("k", [32, pytest.param(1, marks=pytest.mark.thorough), 255])
def test_the_top_k_of_long_rows(library, k, compiled):
    """Longer rows than the streams of the conformance suite have, and many queries."""

    def select(x, allowed, order):
        return ops.select_top_k(x, allowed, k, order)

    run = library.compile(select) if compiled else select
    rng = np.random.default_rng(k)
    for kind, draw in SPREADS.items():
        x = draw(rng, (2, 3, 64, 256)).astype(np.float32)
        allowed = rng.random((2, 1, 1, 256)) < 0.9
        allowed[1, :, :, 3:] = False  # a row with fewer than k
        order = rng.permutation(256).astype(np.int32)[None, None, None]
        masked = np.where(allowed, x, -np.inf)
        best = np.lexsort(np.broadcast_arrays(-order, -masked), axis=-1)[..., :k]
        expected = np.zeros(x.shape, dtype=bool)
        np.put_along_axis(expected, best, True, axis=-1)
        found = library.to_numpy(run(*map(library.from_numpy, (x, allowed, order))))
        assert (found == (expected & allowed)).all(), kind
