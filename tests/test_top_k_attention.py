"""Attention over the top K, generic and in machine code, against its definition."""

import sys

import numpy as np
import pytest

import attendre_core as at
from attendre_core import numba_kernels, ops
from attendre_core.backend import backend

LIBRARIES = ["numpy", "array_api_strict", "torch", "jax"]
SLOTS = 200  # three words of 64 slots and some more
#: Rows for which a guess of the threshold is right, wrong or useless, and rows full of ties.
SPREADS = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "skewed": lambda rng, shape: rng.exponential(size=shape) ** 3,
    "few values": lambda rng, shape: rng.integers(-2, 3, size=shape).astype(float),
    "one value": lambda rng, shape: np.full(shape, -3.0),
    "two heaps": lambda rng, shape: rng.normal(size=shape) + 1e4 * (np.arange(shape[-1]) > 99),
    "flat at first": lambda rng, shape: rng.normal(size=shape) * (np.arange(shape[-1]) > 99),
    "far below zero": lambda rng, shape: rng.normal(size=shape) - 1e6,
    "tiny": lambda rng, shape: rng.normal(size=shape) * 1e-30,
    "subnormal": lambda rng, shape: rng.normal(size=shape) * 1e-42,
    "far apart": lambda rng, shape: rng.normal(size=shape) * 1e4,
    "huge": lambda rng, shape: rng.normal(size=shape) * 1e25,
}


@pytest.fixture(params=LIBRARIES)
def library(request):
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return backend(request.param)


def masks(rng):
    """Everything; a mask a batch row with nearly nothing and nothing; one for each query."""
    rows = rng.random((2, 1, 1, 1, SLOTS)) < 0.9
    rows[1, ..., 3:] = False
    pairs = rng.random((2, 2, 1, 5, SLOTS)) < 0.7
    pairs[0, 1, 0, 2] = False
    return {"all": np.ones((1, 1, 1, 1, SLOTS), dtype=bool), "rows": rows, "pairs": pairs}


def by_definition(logits, value, allowed, k, order):
    """Sort, take k, softmax, add up: in double precision. Returns who was taken, too."""
    masked = np.where(allowed, logits, -np.inf).astype(np.float64)
    best = np.lexsort(np.broadcast_arrays(-order, -masked), axis=-1)[..., :k]
    used = np.zeros(logits.shape, dtype=bool)
    np.put_along_axis(used, best, True, axis=-1)
    used &= allowed
    return attended(masked, value, used), used


def attended(masked, value, used):
    top = np.max(np.where(used, masked, -1e30), axis=-1, keepdims=True)
    weights = np.where(used, np.exp(np.minimum(masked - top, 0)), 0)
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
    return np.einsum("bgrqs,bgsd->bgrqd", weights, value.astype(np.float64))


def inputs(library, spread, rng):
    if library.name == "jax" and spread == "subnormal":
        pytest.skip("XLA takes subnormal numbers for zeros")
    logits = SPREADS[spread](rng, (2, 2, 3, 5, SLOTS)).astype(np.float32)
    value = rng.normal(size=(2, 2, SLOTS, 7)).astype(np.float32)
    order = rng.permuted(np.tile(np.arange(SLOTS, dtype=np.int32), (2, 1)), axis=1)
    return logits, value, order[:, None, None, None, :]


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("k", [1, 13, SLOTS - 1])
def test_who_is_attended_to_and_what_comes_out(library, k, spread):
    rng = np.random.default_rng(k)
    logits, value, order = inputs(library, spread, rng)
    for kind, allowed in masks(rng).items():
        want, used = by_definition(logits, value, allowed, k, order)
        x, v, may, age = map(library.from_numpy, (logits, value, allowed, order))
        output, threshold, oldest = map(library.to_numpy, ops.attend_top_k(x, v, may, k, age))
        np.testing.assert_allclose(output, want, rtol=2e-6, atol=2e-6, err_msg=kind)
        marked = (logits > threshold) | ((logits == threshold) & (order >= oldest))
        assert ((marked & allowed) == used).all(), kind


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("passes", [1, 4, 16])
def test_halving_attends_to_what_it_marks(library, passes, spread):
    rng = np.random.default_rng(passes)
    logits, value, order = inputs(library, spread, rng)
    for kind, allowed in masks(rng).items():
        x, v, may, age = map(library.from_numpy, (logits, value, allowed, order))
        with at.force_generic():
            used = library.to_numpy(ops.approximate_top_k(x, may, 13, passes))
        found = map(library.to_numpy, ops.attend_top_k(x, v, may, 13, age, passes))
        output, threshold, oldest = found
        want = attended(np.where(allowed, logits, -np.inf).astype(np.float64), value, used)
        np.testing.assert_allclose(output, want, rtol=2e-6, atol=2e-6, err_msg=kind)
        marked = (logits > threshold) | ((logits == threshold) & (order >= oldest))
        assert ((marked & allowed) == used).all(), kind


needs_compiler = pytest.mark.skipif(
    not numba_kernels.installed(), reason="needs numba: pip install 'attendre-core[compiled]'"
)


def arguments(k=13, rows=5):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(1, 2, 1, rows, SLOTS)).astype(np.float32)
    value = rng.normal(size=(1, 2, SLOTS, 7)).astype(np.float32)
    order = np.arange(SLOTS, dtype=np.int32)[None, None, None, None]
    return [logits, value, np.ones(order.shape, dtype=bool), k, order]


@needs_compiler
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_machine_code_declines_what_it_cannot_rank(bad):
    given = arguments()
    assert numba_kernels.attend_top_k(*given) is not NotImplemented
    given[0][0, 1, 0, 3, 77] = bad
    assert numba_kernels.attend_top_k(*given) is NotImplemented
    given[2] = given[2].copy()
    given[2][..., 77] = False  # what may not be attended to does not matter
    assert numba_kernels.attend_top_k(*given) is not NotImplemented


@needs_compiler
def test_machine_code_declines_other_types():
    given = arguments()
    for which in (0, 1):
        wide = [x.astype(np.float64) if i == which else x for i, x in enumerate(given)]
        assert numba_kernels.attend_top_k(*wide) is NotImplemented


@needs_compiler
def test_several_threads_compute_the_same():
    given = arguments(rows=333)
    alone = numba_kernels.attend_top_k(*given)
    together = numba_kernels.attend_top_k(*given, threads=3)
    for one, many in zip(alone, together, strict=True):
        assert (one == many).all()
    given[0][0, 0, 0, 5, 5] = np.nan  # seen by one thread of them
    assert numba_kernels.attend_top_k(*given, threads=3) is NotImplemented


@needs_compiler
def test_arrays_may_be_views():
    given = arguments(rows=6)
    want = numba_kernels.attend_top_k(*given)
    views = [np.asfortranarray(given[0]), given[1][..., ::-1, :][..., ::-1, :], *given[2:]]
    for one, other in zip(want, numba_kernels.attend_top_k(*views), strict=True):
        assert (one == other).all()


@needs_compiler
def test_a_memory_uses_machine_code_where_it_is_installed(monkeypatch):
    assert "attend_top_k" in backend("numpy").kernels
    calls = []
    kernel = backend("numpy").kernels["attend_top_k"]
    monkeypatch.setitem(
        backend("numpy").kernels, "attend_top_k", lambda *a: calls.append(a) or kernel(*a)
    )
    rng = np.random.default_rng(0)
    entries = rng.normal(size=(1, 16, 2, 4)).astype(np.float32)
    for policy in (at.LRU(), at.LFU(), at.LRA("max")):
        memory = at.KeyValueMemory(12, policy)
        runs = []
        for generic in (False, True):
            state = memory.init(batch=1, heads=2, head_dim=4, xp=np)
            for start in range(0, 16, 4):
                chunk = entries[:, start : start + 4]
                state, _ = memory.insert(state, chunk, chunk)
                if generic:
                    with at.force_generic():
                        state, out = memory.attend(state, chunk, top_k=3)
                else:
                    state, out = memory.attend(state, chunk, top_k=3)
            runs.append((state.position, state.score, out))
        for own, plain in zip(*runs, strict=True):
            np.testing.assert_allclose(own, plain, rtol=1e-5, atol=1e-6)
    assert len(calls) == 12


def test_importing_the_library_does_not_import_the_compiler():
    import subprocess

    code = """
import sys
from attendre_core.backend import backend
backend("numpy")
assert "numba" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
