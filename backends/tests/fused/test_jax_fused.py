"""The Pallas kernels: interpreted against float64, and lowered for TPUs.

No TPU is needed, and none was used.
"""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from fused_cases import ANY_CASE, CASES, MORE_CASES, POLICIES, Case, check, given, streamed  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from hypothesis import given as drawn  # noqa: E402
from jax import export  # noqa: E402

import attendre_core as at  # noqa: E402
from attendre_core import ops  # noqa: E402
from attendre_core.backend import backend, fused_kernels  # noqa: E402
from attendre_core.eager.fusing import Mask  # noqa: E402
from attendre_jax.fused import dispatch, launch, passes  # noqa: E402

JAX = backend("jax")
RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
SOME = [("weights", "sum"), ("logits", "max"), ("weights", "mean")]


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_against_float64(number):
    check(JAX, CASES[number], [SOME[number % len(SOME)]])


@pytest.mark.thorough
@pytest.mark.parametrize("case", MORE_CASES, ids=str)
def test_more_against_float64(case):
    check(JAX, case, SOME)


@drawn(ANY_CASE)
@settings(max_examples=3, **RELAXED)
def test_any_shape(case):
    check(JAX, case, SOME[:1])


@pytest.mark.thorough
@drawn(ANY_CASE)
@settings(max_examples=60, **RELAXED)
def test_many_shapes(case):
    check(JAX, case, SOME[:2])


def test_several_blocks_of_slots():
    check(JAX, Case(slots=300, queries=150, group=1, heads=1), SOME[:1])


# ------------------------------------------------------------------ what is declined


@pytest.fixture
def launches(monkeypatch):
    """Count the calls of each kernel."""
    counts = {"attend_rows": 0, "pool_columns": 0}

    def counted(name, kernel):
        def call(*arguments, **options):
            counts[name] += 1
            return kernel(*arguments, **options)

        return call

    for name in counts:
        monkeypatch.setattr(launch, name, counted(name, getattr(launch, name)))
    return counts


ZEROS = jnp.zeros((2, 2, 2, 20, 16)), jnp.zeros((2, 2, 70, 16))
DECLINED = {
    "a bias": lambda p, v: (p._replace(bias=jnp.zeros((1, 1, 1, 20, 70))), v),
    "a limit": lambda p, v: (p._replace(limit=5.0), v),
    "a sink": lambda p, v: (p._replace(sink=jnp.zeros((1, 2, 2, 1, 1))), v),
    "two terms": lambda p, v: (p._replace(terms=(*p.terms, ops.Term(*ZEROS, low=3))), v),
    "another mask": lambda p, v: (p._replace(near=jnp.ones((2, 1, 1, 20, 70), dtype=bool)), v),
    "wide heads": lambda p, v: (p, jnp.zeros((2, 2, 70, 257))),
}


@pytest.mark.parametrize("what", DECLINED)
def test_declined(what, launches):
    pairs, value = DECLINED[what](*given(JAX, Case())[:2])
    with fused_kernels("interpreted"):
        assert dispatch.pool_pairs(pairs, "weights", "sum", None, value) is NotImplemented
        ops.attend(pairs, value)
    assert launches == {"attend_rows": 0, "pool_columns": 0}


@pytest.mark.parametrize("mode", ["off", "auto"])
def test_nothing_is_traced_on_a_cpu_unless_asked(mode, launches):
    pairs, value, _ = given(JAX, Case(documents=True))
    with fused_kernels(mode):
        ops.pool_pairs(pairs, "weights", "sum", None, value)
        ops.sum_logits(pairs)
        ops.attend(pairs, value)
    assert launches == {"attend_rows": 0, "pool_columns": 0}


# ------------------------------------------------------------------ derivatives


def loss(key, value, mode):
    """A number that depends on keys, on values, and on scores without a gradient."""
    pairs, _, _ = given(JAX, Case())
    pairs = pairs._replace(terms=(ops.Term(pairs.terms[0].plain_query, key),), memo={})
    with fused_kernels(mode):
        scores = ops.pool_pairs(pairs, "weights", "sum", None, value)
        output = ops.attend(pairs, value) * pairs.query_valid[:, None, None, :, None]
    return jnp.sum(output * jnp.cos(output)) * jnp.sum(scores * scores)


def test_derivatives_are_those_of_the_plain_body():
    pairs, value, _ = given(JAX, Case())
    key = pairs.terms[0].plain_key
    plain, fused = (
        jax.grad(loss, argnums=(0, 1))(key, value, mode) for mode in ("off", "interpreted")
    )
    for one, other in zip(plain, fused, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_allclose(other, one, rtol=2e-4, atol=2e-4)


# ------------------------------------------------------------------ memories

QUICK = ["H2O"]


@pytest.mark.parametrize(
    "name", [p if p in QUICK else pytest.param(p, marks=pytest.mark.thorough) for p in POLICIES]
)
def test_memories_keep_the_same_slots(name, launches):
    agree(*(streamed(JAX, POLICIES[name], mode) for mode in ("off", "interpreted")))
    assert launches["attend_rows"] == (10 if name == "TOVA" else 5)


@pytest.mark.thorough
def test_memories_with_documents_and_positions():
    policy = at.LFA(score="softmax", decay=0.01)
    agree(*(streamed(JAX, policy, mode, at.RoPE(), True) for mode in ("off", "interpreted")))


def agree(plain, fused):
    for one, other in zip(plain, fused, strict=True):
        if one.dtype.kind == "f":
            np.testing.assert_allclose(other, one, rtol=0, atol=2e-5)
        else:
            assert (one == other).all()


# ------------------------------------------------------------------ TPUs


def lowered(function, *arguments):
    """Lower a function for TPUs; return how many kernels the program calls, and its text."""
    text = export.export(jax.jit(function), platforms=["tpu"])(*arguments).mlir_module()
    return len(re.findall("@tpu_custom_call", text)), text


def lower(dtype, dim, queries, slots, documents, per_head, how, without):
    """Lower both passes of one variant; ``without`` names what is left out."""

    def shape(*sizes, dtype=dtype):
        return jax.ShapeDtypeStruct(sizes, dtype)

    batch, heads, group = 2, 2, 4
    records = (batch, heads if per_head else 1, slots)
    ids = [shape(*sizes, dtype=jnp.int32) for sizes in ((batch, queries), records)]
    mask = Mask(*ids, *(ids if documents else ()))

    def both(query, key, value, mask, weight):
        value = None if "value" in without else value
        output, sums = passes.attend_rows(query, key, value, mask, 0.125, False)
        sums = None if "sums" in without else sums
        weight = None if "weight" in without else weight
        pooled = passes.pool_columns(query, key, mask, sums, weight, how, 0.125, False)
        return output, sums, pooled

    entries = shape(batch, heads, slots, dim)
    count, text = lowered(
        *(both, shape(batch, heads, group, queries, dim), entries, entries, mask),
        shape(batch, queries, dtype=jnp.float32),
    )
    # Without values and sums nothing of the first pass is returned.
    assert count == (1 if {"value", "sums"} <= set(without) else 2)
    assert "dot_general" not in text, "a product is outside of the kernels"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("how", ["sum", "max", "mean"])
def test_lowered_for_tpus(dtype, how):
    lower(jnp.dtype(dtype), 64, 128, 2048, True, True, how, ())


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dim", [16, 64, 80, 128, 256])
def test_every_variant_lowered_for_tpus(dtype, dim):
    left_out = [(), ("weight",), ("sums",), ("value",), ("value", "sums", "weight")]
    options = itertools.product(("sum", "max", "mean"), left_out, (1, 300), (100, 4096))
    for number, (how, without, queries, slots) in enumerate(options):
        documents, per_head = number % 2 == 0, number % 3 == 0
        lower(jnp.dtype(dtype), dim, queries, slots, documents, per_head, how, without)


def test_a_step_of_a_memory_is_exported_for_tpus():
    """From a machine without a TPU: the exported program scores and attends in two kernels."""
    memory = at.KeyValueMemory(size=256, policy=at.H2O())
    state = memory.init(batch=1, heads=2, head_dim=64, xp="jax", dtype=jnp.bfloat16)
    query = jnp.zeros((1, 32, 4, 64), jnp.bfloat16)

    def step(state, query):
        with fused_kernels("on"):
            return memory.attend(state, query, causal=True, encoding=at.RoPE())

    count, text = lowered(lambda state, query: step(state, query)[1:], state, query)
    assert count == 1
    assert lowered(step, state, query)[0] == 2
    assert "32x256xf32" not in text, "the program has a matrix of all pairs"
