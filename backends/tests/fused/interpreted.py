"""Tests of the Triton kernels, interpreted on the CPU.

Triton decides when it is imported whether it interprets, so `test_torch_fused.py` runs this file in
a process of its own: ``TRITON_INTERPRET=1 pytest backends/tests/fused/interpreted.py``.
"""

from __future__ import annotations

import pytest
import torch
from fused_cases import ANY_CASE, CASES, MORE_CASES, POLICIES, POOLED, Case, check, given, streamed
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import backend, force_generic, fused_kernels
from attendre_torch.fused import dispatch, launch

TORCH = backend("torch")
RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


def counted(counts, name, kernel):
    def call(*arguments):
        counts[name] += 1
        return kernel(*arguments)

    return call


@pytest.fixture
def launches(monkeypatch):
    """Count the launches of each kernel."""
    counts = {"attend_rows": 0, "pool_columns": 0}
    for name in counts:
        monkeypatch.setattr(launch, name, counted(counts, name, getattr(launch, name)))
    return counts


@pytest.mark.parametrize("number", range(len(CASES)), ids=lambda number: str(CASES[number]))
def test_against_float64(number):
    """Together the cases pool in all ways, and the thorough ones below do so one by one."""
    check(TORCH, CASES[number], [POOLED[number % 6], POOLED[(number + 3) % 6]])


@pytest.mark.thorough
@pytest.mark.parametrize("case", MORE_CASES, ids=str)
def test_more_against_float64(case):
    check(TORCH, case)


@drawn(ANY_CASE)
@settings(max_examples=8, **RELAXED)
def test_any_shape(case):
    check(TORCH, case, [("weights", "sum"), ("logits", "max")])


@pytest.mark.thorough
@drawn(ANY_CASE)
@settings(max_examples=150, **RELAXED)
def test_many_shapes(case):
    check(TORCH, case)


def test_strides_are_followed():
    """Queries and keys as a memory holds them are views: not contiguous, and of a larger array."""
    pairs, value, _ = given(TORCH, Case())
    term = pairs.terms[0]
    query = term.plain_query.permute(0, 3, 1, 2, 4).contiguous().permute(0, 2, 3, 1, 4)
    key = torch.cat([term.plain_key, term.plain_key], dim=2)[:, :, : value.shape[2]]
    turned = value.mT.contiguous().mT
    other = pairs._replace(terms=(ops.Term(query, key),), memo={})
    with fused_kernels("interpreted"):
        results = [
            (ops.pool_pairs(one, "weights", "sum", None, v), ops.attend(one, v))
            for one, v in ((pairs, value), (other, turned))
        ]
    for one, same in zip(*results, strict=True):
        assert torch.equal(one, same)


def test_pairs_that_share_a_memo_are_kept_apart():
    pairs, value, _ = given(TORCH, Case())
    term = pairs.terms[0]
    double = pairs._replace(terms=(ops.Term(2 * term.plain_query, term.plain_key),))
    with fused_kernels("interpreted"):
        alone = ops.pool_pairs(double._replace(memo={}), "weights", "sum", None, value)
        ops.pool_pairs(pairs, "weights", "sum", None, value)
        assert torch.equal(ops.pool_pairs(double, "weights", "sum", None, value), alone)


# ------------------------------------------------------------------ what is declined

TWO = ops.Term(torch.zeros(2, 2, 2, 20, 16), torch.zeros(2, 2, 70, 16), low=3)
DECLINED = {
    "a bias": lambda p, v: (p._replace(bias=torch.zeros(1, 1, 1, 20, 70)), v),
    "a limit": lambda p, v: (p._replace(limit=5.0), v),
    "a sink": lambda p, v: (p._replace(sink=torch.zeros(1, 2, 2, 1, 1)), v),
    "two terms": lambda p, v: (p._replace(terms=(*p.terms, TWO)), v),
    "another mask": lambda p, v: (p._replace(near=torch.rand(2, 1, 1, 20, 70) > 0.5), v),
    "float64": lambda p, v: (doubled(p), v.double()),
    "wide heads": lambda p, v: (p, torch.zeros(2, 2, 70, 257)),
}


def doubled(pairs):
    term = pairs.terms[0]
    return pairs._replace(terms=(ops.Term(term.plain_query.double(), term.plain_key.double()),))


@pytest.mark.parametrize("what", DECLINED)
def test_declined(what, launches):
    pairs, value, _ = given(TORCH, Case())
    pairs, value = DECLINED[what](pairs, value)
    with fused_kernels("interpreted"):
        assert dispatch.pool_pairs(pairs, "weights", "sum", None, value) is NotImplemented
        ops.attend(pairs, value)
        ops.pool_pairs(pairs, "weights", "sum", None, value)
    assert launches == {"attend_rows": 0, "pool_columns": 0}


@pytest.mark.parametrize("mode", ["off", "auto", "on"])
def test_nothing_is_launched_on_a_cpu_unless_asked(mode, launches):
    pairs, value, _ = given(TORCH, Case(documents=True))
    with fused_kernels(mode):
        ops.pool_pairs(pairs, "weights", "sum", None, value)
        ops.sum_logits(pairs)
        ops.attend(pairs, value)
    assert launches == {"attend_rows": 0, "pool_columns": 0}


def test_gradients_go_through_other_kernels(launches):
    found = []
    for mode in ("interpreted", "off"):
        pairs, value, _ = given(TORCH, Case())
        value.requires_grad_()
        with fused_kernels(mode):
            scores = ops.pool_pairs(pairs, "weights", "sum", None, value)
            output = ops.attend(pairs, value)
        assert not scores.requires_grad
        (output * scores.sum()).sum().backward()
        found.append(value.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)
    assert launches == {"attend_rows": 1, "pool_columns": 1}, "scores alone are fused"


def test_torch_func_is_declined(launches):
    pairs, _, weight = given(TORCH, Case())

    def scores(factor):
        return ops.pool_pairs(pairs._replace(memo={}), "weights", "sum", factor)

    with fused_kernels("interpreted"):
        torch.func.vmap(scores)(torch.stack([weight, 2 * weight]))
    assert launches == {"attend_rows": 0, "pool_columns": 0}


# ------------------------------------------------------------------ memories


@pytest.mark.parametrize("name", POLICIES)
def test_memories_keep_the_same_slots(name, launches):
    policy = POLICIES[name]
    plain, fused = (streamed(TORCH, policy, mode) for mode in ("off", "interpreted"))
    agree(plain, fused)
    # One pass for all outputs of the 5 steps; TOVA's scores are those of another query.
    assert launches["attend_rows"] == (10 if name == "TOVA" else 5)
    assert launches["pool_columns"] == (0 if name == "LFA logits" else 5)


def test_memories_with_documents_and_positions(launches):
    policy = at.LFA(score="softmax", decay=0.01)
    runs = [streamed(TORCH, policy, mode, at.RoPE(), True) for mode in ("off", "interpreted")]
    agree(*runs)
    assert launches == {"attend_rows": 5, "pool_columns": 5}


def test_sums_of_logits_with_documents_need_no_matrix(launches):
    runs = [streamed(TORCH, at.LFA(), mode, None, True) for mode in ("off", "interpreted")]
    agree(*runs)
    assert launches["pool_columns"] == 5


def agree(plain, fused):
    for one, other in zip(plain, fused, strict=True):
        if one.dtype.kind == "f":
            torch.testing.assert_close(torch.tensor(other), torch.tensor(one), rtol=0, atol=2e-5)
        else:
            assert (one == other).all()


@pytest.mark.parametrize("documents", [False, True])
def test_compiled_code_launches_the_same(documents, launches):
    """``torch.compile`` makes one graph of it, with the two kernels in it."""
    case = Case(documents=documents, dtype="bfloat16", rotated=documents)
    pairs, value, weight = given(TORCH, case)

    def both(query, key, value, weight):
        term = pairs.terms[0]
        turn = (term.rotate, term.query_at, term.key_at)
        own = pairs._replace(terms=(ops.Term(query, key, *turn),), memo={})
        scores = ops.pool_pairs(own, "weights", "sum", weight, value)
        return scores, ops.attend(own, value)

    arguments = pairs.terms[0].plain_query, pairs.terms[0].plain_key, value, weight
    with fused_kernels("interpreted"):
        results = both(*arguments), TORCH.compile(both)(*arguments)
    assert launches == {"attend_rows": 2, "pool_columns": 2}
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)


def test_force_generic_launches_nothing(launches):
    pairs, value, _ = given(TORCH, Case())
    with fused_kernels("interpreted"), force_generic():
        ops.pool_pairs(pairs, "weights", "sum", None, value)
    assert launches == {"attend_rows": 0, "pool_columns": 0}
