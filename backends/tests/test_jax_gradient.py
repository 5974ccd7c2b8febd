"""Gradients through the memory: those of full attention, as long as nothing is evicted.

The paper's Q memory stops the gradient; ours hands it on to the queries that waited.
"""

import numpy as np
import pytest

import attendre_core as at

jax = pytest.importorskip("jax")
import attendre_jax  # noqa: E402

jnp = jax.numpy

B, S, T, H, G, D = 2, 4, 16, 4, 2, 8


def inputs(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(jnp.asarray(rng.normal(size=(B, T, n, D)), dtype=jnp.float32) for n in (H, G, G))


def full_attention(query, key, value, allowed):
    """Attend at once; ``allowed`` is (T, T)."""
    key, value = (jnp.repeat(x, H // G, axis=2) for x in (key, value))
    logits = jnp.einsum("bihd,bjhd->bhij", query, key) * D**-0.5
    weights = jax.nn.softmax(jnp.where(allowed, logits, -jnp.inf), axis=-1)
    return jnp.einsum("bhij,bjhd->bihd", weights, value)


def seen(delay=0, causal=False):
    """Which keys are there when a query attends: those of N positions later at most."""
    chunk = np.arange(T) // S
    if causal:
        return jnp.asarray(np.tril(np.ones((T, T), dtype=bool)))
    return jnp.asarray(chunk[None, :] <= chunk[:, None] + delay // S)


def gradients(attend):
    weight = jnp.asarray(np.random.default_rng(9).normal(size=(B, T, H, D)), dtype=jnp.float32)

    def loss(arrays):
        out = attend(*arrays)
        return jnp.sum(out * weight) + jnp.sum(out**2)

    return jax.jit(jax.value_and_grad(loss))(inputs())


LAYERS = {
    "waiting": (at.AttendreLayer(at.KeyValueMemory(T, at.LFA()), at.DataOnlyMemory(8)), seen(8)),
    "causal": (at.AttendreLayer(at.KeyValueMemory(T, at.LRA("max")), causal=True), seen(0, True)),
    "both-ways": (at.AttendreLayer(at.KeyValueMemory(T + 1), at.DataOnlyMemory(T)), seen(T)),
}


@pytest.mark.parametrize("remat", [False, True], ids=["kept", "remat"])
@pytest.mark.parametrize("name", LAYERS)
def test_gradient_is_that_of_full_attention(name, remat):
    layer, allowed = LAYERS[name]
    value, got = gradients(
        lambda *x: attendre_jax.chunked_attention(layer, *x, chunk=S, remat=remat)
    )
    wanted_value, want = gradients(lambda *x: full_attention(*x, allowed))
    np.testing.assert_allclose(value, wanted_value, rtol=1e-5)
    for part, a, b in zip(("query", "key", "value"), got, want, strict=True):
        assert float(jnp.abs(b).max()) > 0.1
        np.testing.assert_allclose(a, b, atol=1e-5, err_msg=part)


def test_gradient_reaches_queries_that_waited():
    """The output of a later step moves the query of an earlier one."""
    layer, _ = LAYERS["waiting"]
    query, key, value = inputs()
    cut = attendre_jax.split_chunks(at.Chunk(query, key, value), S)

    def late(first_query):
        chunks = cut._replace(query=cut.query.at[0].set(first_query))
        state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp=jnp)
        _, out = attendre_jax.scan_chunks(layer, state, chunks)
        return jnp.sum(out.value[2] ** 2)  # two chunks, N = 8 positions, later

    assert float(jnp.abs(jax.jit(jax.grad(late))(cut.query[0])).min()) > 0


def test_truncated_gradient_stops_where_it_is_told():
    """The outputs of chunk 3 reach the keys of chunks 2 and 3, not those before the cut."""
    layer = at.AttendreLayer(at.KeyValueMemory(T))
    query, key, value = inputs()
    cut = attendre_jax.split_chunks(at.Chunk(query, key, value), S)

    def last(keys, truncate):
        state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp=jnp)
        _, out = attendre_jax.scan_chunks(layer, state, cut._replace(key=keys), truncate=truncate)
        return jnp.sum(out.value[3] ** 2)

    slope = jax.jit(jax.grad(last), static_argnums=1)
    reach = [float(jnp.abs(slope(cut.key, 2)[i]).max()) for i in range(4)]
    assert reach[:2] == [0.0, 0.0]
    assert min(reach[2:]) > 0
    assert float(jnp.abs(slope(cut.key, None)[0]).max()) > 0
    np.testing.assert_array_equal(slope(cut.key, None)[3], slope(cut.key, 2)[3])


def test_gradient_is_finite_where_nothing_may_be_attended():
    """Padding, empty memories and top K give zeros, never NaN."""
    layer = at.AttendreLayer(
        at.KeyValueMemory(8, at.LFA(score="softmax")), at.DataOnlyMemory(4), top_k=3,
        encoding=at.LMInfinite(6),
    )  # fmt: skip
    valid = np.zeros((B, T), dtype=bool)
    valid[0, 3:9] = True

    def loss(arrays):
        out = attendre_jax.chunked_attention(layer, *arrays, chunk=S, valid=jnp.asarray(valid))
        return jnp.sum(out**2)

    value, grads = jax.jit(jax.value_and_grad(loss))(inputs())
    assert np.isfinite(value)
    for grad in grads:
        assert np.isfinite(grad).all()
        assert (np.asarray(grad)[~valid] == 0).all()
    assert float(jnp.abs(grads[1]).max()) > 0


def test_remat_keeps_less():
    """Only the states between chunks are kept: less than everything that a step computes."""
    layer = at.AttendreLayer(at.KeyValueMemory(64), top_k=None, encoding=at.RoPE())
    arrays = tuple(jnp.zeros((1, 1024, n, 8)) for n in (8, 1, 1))

    def kept(remat):
        def loss(arrays):
            out = attendre_jax.chunked_attention(layer, *arrays, chunk=32, remat=remat)
            return jnp.sum(out**2)

        compiled = jax.jit(jax.grad(loss)).lower(arrays).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert kept(True) < 0.5 * kept(False)
