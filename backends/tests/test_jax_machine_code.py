"""Machine code inside functions that JAX compiles: the same entries, derivatives, mapping."""

import numpy as np
import pytest

import attendre_core as at
from attendre_core import numba_kernels, ops

jax = pytest.importorskip("jax")
if not numba_kernels.installed():
    pytest.skip("needs numba: pip install 'attendre-core[compiled]'", allow_module_level=True)

import jax.numpy as jnp  # noqa: E402

from attendre_jax import machine_code  # noqa: E402

SLOTS, K = 150, 9


def arguments(seed=0, ties=False):
    rng = np.random.default_rng(seed)
    logits = rng.integers(-3, 3, size=(2, 2, 3, 4, SLOTS)) if ties else None
    logits = rng.normal(size=(2, 2, 3, 4, SLOTS)) if logits is None else logits
    value = rng.normal(size=(2, 2, SLOTS, 5))
    allowed = rng.random((2, 1, 1, 4, SLOTS)) < 0.8
    allowed[1, 0, 0, 2, 4:] = False
    allowed[1, 0, 0, 3] = False
    order = rng.permutation(SLOTS).astype(np.int32)[None, None, None, None]
    return tuple(map(jnp.asarray, (np.float32(logits), np.float32(value), allowed, order)))


def run(logits, value, allowed, order, passes=None):
    """Attend, and mark who was attended to."""
    output, threshold, oldest = ops.attend_top_k(logits, value, allowed, K, order, passes)
    above = (logits > threshold) | ((logits == threshold) & (order >= oldest))
    return output, above & allowed


def inside(function, *given):
    with machine_code():
        return jax.jit(lambda *a: function(*a))(*given)


def program(function, *given):
    return jax.jit(lambda *a: function(*a)).lower(*given).as_text()


@pytest.mark.parametrize("passes", [None, 6])
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_entries_and_the_same_output(ties, passes):
    given = arguments(1, ties)
    usual = jax.jit(run, static_argnums=4)(*given, passes)
    own = inside(lambda *a: run(*a, passes), *given)
    assert (own[1] == usual[1]).all()
    np.testing.assert_allclose(own[0], usual[0], rtol=1e-5, atol=1e-6)


def test_only_what_is_traced_inside_has_it():
    given = arguments()
    with machine_code():
        assert "attendre_attend_top_k" in program(run, *given)
        with machine_code():
            pass
        assert "attendre_attend_top_k" in program(run, *given)
    assert "attendre_attend_top_k" not in program(run, *given)


def test_it_runs_without_jit():
    given = arguments()
    usual = run(*given)
    with machine_code():
        own = run(*given)
    assert (own[1] == usual[1]).all()


def test_derivatives():
    given = arguments()

    def loss(logits, value):
        return (run(logits, value, *given[2:])[0] ** 2).sum()

    usual = jax.grad(loss, (0, 1))(*given[:2])
    own = inside(jax.grad(loss, (0, 1)), *given[:2])
    assert np.abs(usual[0]).sum() > 0
    for one, other in zip(own, usual, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_mapping():
    one, two = arguments(3), arguments(4)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), one, two)
    own = inside(jax.vmap(run), *stacked)
    for i, given in enumerate((one, two)):
        usual = run(*given)
        assert (own[1][i] == usual[1]).all()
        np.testing.assert_allclose(own[0][i], usual[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_logit_that_is_not_finite_spoils_its_query_alone(bad):
    logits, value, allowed, order = arguments()
    usual = run(logits, value, allowed, order)
    where = (0, 1, 2, 0, int(np.argmax(np.asarray(allowed)[0, 0, 0, 0])))
    own = inside(run, logits.at[where].set(bad), value, allowed, order)
    assert np.isnan(own[0][0, 1, 2, 0]).all()
    assert np.isnan(own[0]).sum() == 5
    assert (np.delete(own[1][0, 1, 2], 0, 0) == np.delete(usual[1][0, 1, 2], 0, 0)).all()


@pytest.mark.parametrize("policy", [at.LRU(), at.LFU(), at.LRA("sum"), at.LFA()], ids=str)
def test_a_stream_keeps_the_same_entries(policy):
    rng = np.random.default_rng(0)
    layer = at.AttendreLayer(at.KeyValueMemory(16, policy), top_k=5)
    parts = [jnp.asarray(rng.normal(size=(1, 8, 2, 4)), jnp.float32) for _ in range(6)]

    def stream():
        step = jax.jit(lambda state, x: layer.step(state, at.Chunk(x, x, x)))
        state = layer.init(batch=1, heads=2, head_dim=4, xp="jax")
        for x in parts:
            state, out = step(state, x)
        return state.kv.position, state.kv.score, out.value

    usual = stream()
    with machine_code():
        own = stream()
    assert (own[0] == usual[0]).all()
    for one, other in zip(own[1:], usual[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_without_the_compiler_there_is_a_clear_error(monkeypatch):
    monkeypatch.setattr(numba_kernels, "installed", lambda: False)
    with pytest.raises(at.ConfigError, match=r"numba.*attendre-core\[compiled\]"), machine_code():
        pass
