"""Attention as a pytree and as a module of flax nnx, and what must not be imported for it."""

import subprocess
import sys

import numpy as np
import pytest

import attendre_core as at

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

jnp = jax.numpy

B, S, T, C, H = 2, 4, 16, 16, 4
SETTINGS = {
    "kv_heads": 2,
    "memory": at.KeyValueMemory(8, at.LFA(initial=at.InitialScore(0.0))),
    "q_memory": 4,
    "encoding": at.T5Bias(8, 16),
}


def made(**changes):
    return attendre_jax.AttendreAttention.create(jax.random.key(0), C, H, **{**SETTINGS, **changes})


def whole(seed=1):
    return jax.random.normal(jax.random.key(seed), (B, T, C))


def test_importing_the_adapter_imports_no_other_library():
    code = """
import sys, attendre_jax
attendre_jax.AttendreAttention, attendre_jax.ModelFunctions
print([name for name in ("flax", "equinox", "optax", "torch") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_without_flax_the_message_says_what_to_install():
    code = """
import sys
sys.modules["flax"] = None
try:
    import attendre_jax.nnx
except ModuleNotFoundError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'attendre-core[flax]'" in run.stdout


def test_all_public_names_are_there_and_documented():
    for name in attendre_jax.__all__:
        assert getattr(attendre_jax, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attendre_jax.nothing  # noqa: B018


def test_scanning_a_pytree_equals_reading_the_whole_input():
    attention, x = made(), whole()

    def by_chunks(attention, x):
        state = attention.init_state(B)
        state, out = jax.lax.scan(attention, state, attendre_jax.split_chunks(x, S))
        state, rest = attention.flush(state)
        parts = (attendre_jax.joined_chunks((out.value, out.carry)), (rest.value, rest.carry))
        value, carry = (jnp.concatenate(pair, axis=1) for pair in zip(*parts, strict=True))
        return value[:, attention.delay :], carry[:, attention.delay :]

    value, carry = jax.jit(by_chunks)(attention, x)
    np.testing.assert_array_equal(carry, x)
    want = jax.jit(lambda a, x: a.run(x, chunk=S))(attention, x)
    np.testing.assert_allclose(value, want, atol=1e-5)
    assert float(jnp.abs(want).max()) > 0.1


def test_a_pytree_is_trained_leaf_by_leaf():
    attention, x = made(q_memory=None), whole()

    def loss(attention):
        return jnp.mean((attention.run(x, chunk=S) - x[:, ::-1]) ** 2)

    step = jax.jit(jax.value_and_grad(loss))
    losses = []
    for _ in range(5):
        value, grads = step(attention)
        losses.append(float(value))
        assert isinstance(grads, attendre_jax.AttendreAttention)
        assert all(float(jnp.abs(g).max()) > 0 for g in jax.tree.leaves(grads))
        attention = jax.tree.map(lambda p, g: p - 0.1 * g, attention, grads)
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "4 heads over 3 K/V heads"),
        ({"policy": at.LRU()}, "memory brings one of its own"),
        ({"head_dim": 0}, "head_dim is 0"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(at.ConfigError, match=message):
        made(**changes)


def test_a_preset_brings_everything():
    attention = made(memory=at.preset("LFA-0", kv_size=32, q_size=8, top_k=16), q_memory=None)
    assert attention.delay == 8
    assert attention.layer.top_k == 16
    with pytest.raises(at.ShapeError, match=r"expected \(batch, seq, dim\) = \(any, any, 16\)"):
        attention(attention.init_state(B), jnp.ones((B, S, 3)))


@pytest.mark.thorough
def test_equinox_takes_the_pytree_as_it_is():
    equinox = pytest.importorskip("equinox")
    attention, x = made(), whole()

    @equinox.filter_jit
    @equinox.filter_grad
    def slope(attention):
        return jnp.sum(attention.run(x, chunk=S) ** 2)

    def plain(attention):
        return jnp.sum(attention.run(x, chunk=S) ** 2)

    got, want = slope(attention), jax.jit(jax.grad(plain))(attention)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
    arrays, static = equinox.partition(attention, equinox.is_array)
    assert equinox.combine(arrays, static).layer == attention.layer

    class Block(equinox.Module):
        attention: attendre_jax.AttendreAttention
        scale: jax.Array

        def __call__(self, x):
            return x + self.scale * self.attention.run(x, chunk=S)

    out = equinox.filter_jit(Block(attention, jnp.asarray(2.0)))(x)
    assert out.shape == x.shape


def test_an_nnx_module_computes_what_the_pytree_computes():
    nnx = pytest.importorskip("flax.nnx")
    module = attendre_jax.nnx.AttendreAttention(C, H, rngs=nnx.Rngs(0), **SETTINGS)
    x = whole()
    params = nnx.state(module, nnx.Param)
    assert len(jax.tree.leaves(params)) == 5, "query, key, value, out and the table"
    want = jax.jit(lambda a, x: a.run(x, chunk=S))(module.pytree, x)
    np.testing.assert_allclose(nnx.jit(lambda m, x: m.run(x, chunk=S))(module, x), want, atol=1e-6)

    def loss(module):
        return jnp.sum(module.run(x, chunk=S) ** 2)

    grads = nnx.jit(nnx.grad(loss))(module)
    plain = jax.jit(jax.grad(lambda a: jnp.sum(a.run(x, chunk=S) ** 2)))(module.pytree)
    np.testing.assert_allclose(grads["query"][...], plain.query, atol=1e-5)
    np.testing.assert_allclose(grads["table"][...], plain.table, atol=1e-5)


def test_a_streaming_module_hides_its_state():
    nnx = pytest.importorskip("flax.nnx")
    inner = attendre_jax.nnx.AttendreAttention(C, H, rngs=nnx.Rngs(0), **SETTINGS)
    streaming = attendre_jax.nnx.Streaming(inner, B)
    step = nnx.jit(lambda module, x: module(x))
    own, read = jax.jit(inner.pytree.__call__), inner.init_state(B)
    for chunk in attendre_jax.split_chunks(whole(), S):
        out = step(streaming, chunk)
        read, want = own(read, chunk)
        np.testing.assert_allclose(out.value, want.value, atol=1e-6)
    assert int(streaming.state.kv.clock[0]) == T
    assert nnx.state(streaming, nnx.Param), "parameters are seen through the wrapper"
    streaming.reset(jnp.asarray([True, False]))
    assert streaming.state.kv.valid.any(axis=1).tolist() == [False, True]
    rest = streaming.flush()
    assert rest.valid.any(axis=1).tolist() == [False, True]
    streaming.reset()
    assert not streaming.state.kv.valid.any()
