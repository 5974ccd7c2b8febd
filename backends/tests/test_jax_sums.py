"""Causal sums of logits without reading: no product of all pairs, the same sums."""

import numpy as np
import pytest

import attendre_core as at
from attendre_core import ops

jax = pytest.importorskip("jax")
hypothesis = pytest.importorskip("hypothesis")

import jax.numpy as jnp  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from attendre_jax import sums  # noqa: E402

B, S, M, H, G, D = 2, 6, 20, 4, 2, 8
POLICIES = {
    "LRA-sum": at.LRA("sum"),
    "LRA-mean": at.LRA("mean"),
    "LRA-last": at.LRA("last"),
    "LFA": at.LFA(),
}


def made(seed, queries, slots, *, per_head, group):
    """Make causal pairs of quarters, whose sums are exact in float32; any positions, any order."""
    rng = np.random.default_rng(seed)

    def quarters(*shape):
        return (rng.integers(-8, 9, shape) / 4).astype(np.float32)

    def whole(*shape):
        return rng.integers(0, 12, shape).astype(np.int32)

    query, key = quarters(B, G, group, queries, D), quarters(B, G, slots, D)
    at_query, at_key = whole(B, 1, 1, queries), whole(B, G if per_head else 1, slots)
    real, held = rng.random((B, queries)) < 0.7, rng.random(at_key.shape) < 0.9
    return (query, key, at_query, at_key, real, held), quarters(B, queries)


def paired(query, key, at_query, at_key, real, held):
    term = ops.Term(query, key)
    return ops.Pairs(at_query, at_key, real, held, at_key, (term,), at_query, at_key, causal=True)


@hypothesis.settings(max_examples=30, deadline=None, database=None)
@hypothesis.given(
    seed=st.integers(0, 2**31),
    queries=st.sampled_from([1, 5]),
    slots=st.sampled_from([1, 9]),
    per_head=st.booleans(),
    group=st.sampled_from([1, 2]),
    weighed=st.booleans(),
)
def test_sums_are_those_of_all_pairs(seed, queries, slots, per_head, group, weighed):
    arrays, weight = made(seed, queries, slots, per_head=per_head, group=group)
    weight = weight if weighed else None
    exact = [x.astype(np.float64) if x.dtype == np.float32 else x for x in arrays]
    wanted = ops.sum_logits.plain(paired(*exact), weight)
    found = sums.causal_sums(
        paired(*map(jnp.asarray, arrays)), None if weight is None else jnp.asarray(weight)
    )
    held = np.broadcast_to(arrays[-1][:, :, None, :], wanted.shape)
    np.testing.assert_array_equal(np.asarray(found)[held], wanted[held])


def test_half_precision_is_summed_in_float32():
    arrays, weight = made(3, 9, 15, per_head=False, group=2)
    halves = [jnp.asarray(x, jnp.bfloat16) if x.dtype == np.float32 else x for x in arrays]
    found = sums.causal_sums(paired(*halves), jnp.asarray(weight))
    assert found.dtype == jnp.float32
    wanted = ops.sum_logits.plain(paired(*arrays), weight)
    held = np.broadcast_to(arrays[-1][:, :, None, :], wanted.shape)
    np.testing.assert_array_equal(np.asarray(found)[held], wanted[held])


def multiplied(jaxpr):
    """Return the shapes of all matrix products of a program, with those inside of its calls."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            yield equation.outvars[0].aval.shape
        for inner in jax.tree.leaves(tuple(equation.params.values()), is_leaf=callable):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from multiplied(inner)


def products(policy, top_k=None, present="visible"):
    """Return the products of queries with slots in a causal step, and the number of slots."""
    layer = at.AttendreLayer(
        at.KeyValueMemory(M, policy, present=present),
        top_k=top_k,
        causal=True,
        encoding=at.RoPE(),
    )
    state = layer.init(batch=B, heads=H, kv_heads=G, head_dim=D, xp="jax", chunk=S)
    chunk = at.Chunk(*(jnp.ones((B, S, heads, D)) for heads in (H, G, G)))
    program = jax.make_jaxpr(layer.step)(state, chunk)
    slots = state.kv.key.shape[2]
    return [x for x in multiplied(program.jaxpr) if slots in x and {S, S * H // G} & set(x)]


@pytest.mark.parametrize(
    "present", ["visible", pytest.param("compete", marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize("top_k", [None, pytest.param(5, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("policy", POLICIES)
def test_a_causal_step_multiplies_all_pairs_once_for_attention(policy, top_k, present):
    assert len(products(POLICIES[policy], top_k, present)) == 1
