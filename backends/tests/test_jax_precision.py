"""Half precision: states in bfloat16 or float16, scores and products in float32.

The tolerance documented in docs/guides/jax.md is what is checked here: outputs differ from those
in float32, for the same rounded inputs, by at most one rounding of the output's dtype.
"""

import numpy as np
import pytest

import attendre_core as at

jax = pytest.importorskip("jax")
jnp = jax.numpy

B, S, M, N, H, G, D, T = 2, 8, 16, 4, 4, 2, 16, 8
#: Half a unit in the last place, relative: 8 bits of bfloat16, 11 of float16.
ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
LAYERS = {
    "lfa-top-k-rope": at.AttendreLayer(
        at.KeyValueMemory(M, at.LFA(initial=at.InitialScore(0.0))),
        at.DataOnlyMemory(N),
        top_k=8,
        encoding=at.RoPE(),
    ),
    "lra-causal": at.AttendreLayer(at.KeyValueMemory(M, at.LRA("max")), causal=True),
}


def run(layer, dtype):
    """Read inputs that fit into bfloat16 and float16 exactly."""
    rng = np.random.default_rng(0)
    q, k, v = (
        jnp.asarray(rng.integers(-16, 17, (T, B, S, n, D)) / 8, dtype=dtype) for n in (H, G, G)
    )
    state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp=jnp, dtype=dtype)
    return jax.jit(lambda s, c: jax.lax.scan(layer.step, s, c))(state, at.Chunk(q, k, v))


@pytest.mark.parametrize("name", LAYERS)
def test_only_the_output_is_rounded(name):
    layer = LAYERS[name]
    exact, want = run(layer, jnp.float32)
    assert int(exact.kv.evictions.min()) > 0
    for dtype, rounding in ROUNDING.items():
        state, got = run(layer, jnp.dtype(dtype))
        assert state.kv.key.dtype == got.value.dtype == jnp.dtype(dtype)
        assert state.kv.score.dtype == jnp.float32
        np.testing.assert_array_equal(state.kv.position, exact.kv.position)
        np.testing.assert_allclose(state.kv.score, exact.kv.score, rtol=1e-5, atol=1e-4)
        np.testing.assert_allclose(
            got.value.astype(jnp.float32), want.value, rtol=rounding, atol=1e-6, err_msg=dtype
        )


def test_large_numbers_do_not_overflow_in_float16():
    """Sums of logits go far beyond float16's largest number, 65504."""
    layer = at.AttendreLayer(at.KeyValueMemory(M, at.LRA("sum")))
    big = jnp.full((B, S, H, D), 100.0, dtype=jnp.float16)
    state = layer.init(batch=B, heads=H, kv_heads=H, head_dim=D, xp=jnp, dtype=jnp.float16)
    state, out = jax.jit(layer.step)(state, at.Chunk(big, big, big))
    assert float(state.kv.score[0, 0]) == pytest.approx(H * S * D * 100.0**2 / D**0.5, rel=1e-6)
    assert (out.value == 100.0).all()


def test_gradients_of_half_precision_are_half_precision():
    layer = LAYERS["lra-causal"]

    def loss(value):
        _, out = run_with(layer, value)
        return jnp.sum(out.value.astype(jnp.float32) ** 2)

    def run_with(layer, value):
        state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp=jnp, dtype=value.dtype)
        key = value * 0.5
        query = jnp.repeat(value, H // G, axis=3)
        return jax.lax.scan(layer.step, state, at.Chunk(query, key, value))

    rng = np.random.default_rng(0)
    value = jnp.asarray(rng.integers(-8, 9, (2, B, S, G, D)) / 8, dtype=jnp.bfloat16)
    slope = jax.jit(jax.grad(loss))
    got, want = slope(value), slope(value.astype(jnp.float32))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        got.astype(jnp.float32), want, atol=0.05 * float(jnp.abs(want).max())
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("encoding", [None, at.RoPE(), at.ALiBi()], ids=repr)
def test_stored_numbers_are_multiplied_as_they_are(encoding, dtype):
    """The products of attention take half precision in and give float32."""
    memory = at.KeyValueMemory(M)
    query, key = jnp.ones((B, S, H, D), dtype), jnp.ones((B, S, G, D), dtype)
    state, _ = memory.insert(memory.init(like=key), key, key)
    program = jax.make_jaxpr(lambda s, q: memory.attend(s, q, encoding=encoding))(state, query)
    products = [
        ([x.aval.dtype for x in equation.invars], equation.outvars[0].aval.dtype)
        for equation in program.jaxpr.eqns
        if equation.primitive.name == "dot_general"
    ]
    assert products == [
        ([dtype, dtype], jnp.float32),
        ([jnp.float32, dtype], jnp.float32),
    ]
