"""What is true of JAX alone."""

import itertools

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops

jax = pytest.importorskip("jax")
jnp = jax.numpy

B, S, M, G, H, D, T = 2, 4, 8, 2, 4, 4, 5


def chunks(seed=0):
    rng = np.random.default_rng(seed)
    return tuple(
        jnp.asarray(rng.normal(size=(T, B, S, n, D)).astype(np.float32)) for n in (H, G, G)
    )


def step_of(memory):
    def step(state, chunk):
        query, key, value = chunk
        state, evicted = memory.insert(state, key, value)
        state, output = memory.attend(state, query, top_k=3)
        return state, (output, evicted)

    return step


POLICIES = [at.FIFO(), at.LRU(), at.LRA("max"), at.LFA()]
QUICK = [("compete", at.LRU()), ("visible", at.LFA())]


@pytest.mark.parametrize(
    ("present", "policy"),
    [
        pytest.param(*case, marks=() if case in QUICK else pytest.mark.thorough)
        for case in itertools.product(["compete", "visible"], POLICIES)
    ],
    ids=str,
)
def test_scan_is_a_loop_over_steps(present, policy):
    memory = at.KeyValueMemory(M, policy, present=present)
    step = step_of(memory)
    start = memory.init(batch=B, heads=G, head_dim=D, xp=jnp, chunk=S)
    last, (outputs, _) = jax.lax.scan(step, start, chunks())
    state = start
    for i in range(T):
        state, (output, _) = jax.jit(step)(state, tuple(x[i] for x in chunks()))
        np.testing.assert_allclose(outputs[i], output, atol=1e-6)
    assert (last.position == state.position).all()


def test_vmap_adds_an_axis():
    memory = at.KeyValueMemory(M, at.LFA())
    step = step_of(memory)
    many = jax.tree.map(
        lambda x: jnp.stack([x] * T), memory.init(batch=B, heads=G, head_dim=D, xp=jnp)
    )
    _, (outputs, _) = jax.jit(jax.vmap(step))(many, chunks())
    one = jax.jit(step)
    for i in range(T):
        _, (output, _) = one(
            memory.init(batch=B, heads=G, head_dim=D, xp=jnp), tuple(x[i] for x in chunks())
        )
        np.testing.assert_allclose(outputs[i], output, atol=1e-6)


def test_gradient_through_chunks_agrees_with_differences():
    memory = at.KeyValueMemory(M, at.LFA())

    def loss(value):
        query, key, _ = chunks()
        start = memory.init(batch=B, heads=G, head_dim=D, xp=jnp)
        return jnp.sum(jax.lax.scan(step_of(memory), start, (query, key, value))[1][0] ** 2)

    value = chunks()[2]
    direction = jnp.asarray(np.random.default_rng(9).normal(size=value.shape), dtype=jnp.float32)
    slope = float(jnp.sum(jax.jit(jax.grad(loss))(value) * direction))
    differences = float((loss(value + 1e-2 * direction) - loss(value - 1e-2 * direction)) / 2e-2)
    assert slope == pytest.approx(differences, rel=1e-2)


def test_donated_buffers_are_given_up():
    memory = at.KeyValueMemory(M, at.FIFO())
    step = jax.jit(step_of(memory), donate_argnums=0)
    state = jax.tree.map(jnp.array, memory.init(batch=B, heads=G, head_dim=D, xp=jnp))
    after, _ = step(state, tuple(x[0] for x in chunks()))
    assert state.key.is_deleted()
    assert bool(after.valid.any())


def test_approx_max_k_can_be_chosen():
    """It marks the whole top K and perhaps a few more; without it, bisection marks no more."""
    import attendre_jax

    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(6, 200)), dtype=jnp.float32)
    allowed = jnp.asarray(rng.random((6, 200)) < 0.8)
    order = jnp.arange(200, dtype=jnp.int32)[None, :]
    exact = np.asarray(ops.select_top_k(logits, allowed, 20, order))
    with attendre_jax.approx_max_k(0.9):
        chosen = np.asarray(ops.approximate_top_k(logits, allowed, 20, 16))
    usual = np.asarray(ops.approximate_top_k(logits, allowed, 20, 16))
    assert (chosen >= exact).all()
    assert not (chosen & ~np.asarray(allowed)).any()
    assert chosen.sum() < 1.5 * exact.sum()
    assert (usual <= exact).all()
    with pytest.raises(at.ConfigError, match="recall_target is 0"), attendre_jax.approx_max_k(0):
        pass
