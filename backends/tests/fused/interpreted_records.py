"""Tests of the Triton kernels for records, interpreted on the CPU as if it were an accelerator.

Run like `interpreted.py`, by `test_torch_fused.py`.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import given as drawn
from hypothesis import strategies as st

import attendre_core as at
from attendre_core import ops
from attendre_core.backend import force_generic, fused_kernels
from attendre_torch import launches
from attendre_torch.fused import records
from attendre_torch.looking import as_on_a_device

RELAXED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}
NAMES = [name for name in records.__all__ if name not in ("OPTIONS", "can")]


@pytest.fixture
def launched(monkeypatch):
    """Count the launches of each kernel."""
    counts = dict.fromkeys(NAMES, 0)

    def counting(name, kernel):
        def call(*arguments):
            counts[name] += 1
            return kernel(*arguments)

        return call

    for name in NAMES:
        monkeypatch.setattr(records, name, counting(name, getattr(records, name)))
    return counts


def both(call):
    """Return what the plain bodies and what the kernels make of a call."""
    with force_generic():
        plain = call()
    with fused_kernels("interpreted"), as_on_a_device():
        return plain, call()


def noise(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def flags(*shape, seed=0, share=0.7):
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


def shuffled(rows, count, seed=0):
    return torch.argsort(noise(rows, count, seed=seed), dim=-1)


# ------------------------------------------------------------------ one by one


@pytest.mark.parametrize("slots", [1, 20, 1100])
@pytest.mark.parametrize("deviations", [0.0, 2.5])
def test_initial_scores(slots, deviations, launched):
    score = noise(2, 3, slots)
    for counted in (flags(2, 3, slots), flags(2, 3, slots, share=2.0), flags(2, 3, slots, share=0)):
        plain, own = both(lambda c=counted: ops.mean_less_deviations(score, c, deviations))
        torch.testing.assert_close(own, plain, rtol=1e-5, atol=1e-6)
    assert launched["mean_less_deviations"] == 3


@pytest.mark.parametrize(
    "row",
    [[0.1] * 7, [1e6, 1e6 + 1], [-3.0, -3.0, -3.0 + 2**-20], [1e-10, 2e-10], [5.0], [-0.0, 0.0]],
)
def test_an_initial_score_is_set_equal_to_one_that_is_as_near(row):
    score = torch.tensor([row])
    plain, own = both(lambda: ops.mean_less_deviations(score, score == score, 1.0))
    assert torch.equal(own, plain)
    assert own in score


def test_ranks_with_ties_and_odd_numbers(launched):
    odd = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, 1.5, 1.5, -2.0, 3e38, -1e-40, 1e-40])
    primary, order = odd.repeat(3, 30), shuffled(3, 300).to(torch.int32) - 100
    plain, own = both(lambda: ops.lowest(primary, order, 250))
    assert torch.equal(own, plain)
    new = primary[:, :40].flip(0), order[:, :40] + 500
    plain, own = both(lambda: ops.admit(primary, order, *new))
    assert all(map(torch.equal, own, plain))
    assert launched["keys"] == 3


@pytest.mark.parametrize("dim", [2, 6, 64])
def test_rotations(dim, launched):
    frequency = 10.0 ** -torch.arange(dim // 2)
    query = noise(2, 17, 3, 2, dim).permute(0, 2, 3, 1, 4)  # strides as in a step
    at_query = torch.arange(-16, 1, dtype=torch.int32).expand(2, 1, 1, 17)
    key, at_key = noise(2, 3, 40, dim), -shuffled(6, 40).reshape(2, 3, 40).to(torch.int32) * 99
    for x, position in ((query, at_query), (key, at_key), (key, at_key[:, :1])):
        plain, own = both(lambda x=x, p=position: ops.rotate_at(x, p, frequency))
        torch.testing.assert_close(own, plain, rtol=0, atol=2e-6)
    assert launched["rotate"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("donate", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_written_entries(dtype, donate, per_head, launched):
    arrays = [noise(2, 3, 40, width).to(dtype) for width in (16, 5)]
    new = [noise(2, 19, 3, width, seed=1).to(dtype).permute(0, 2, 1, 3) for width in (16, 5)]
    slot = shuffled(6, 40).reshape(2, 3, 40)[:, :, :19]
    write = flags(2, 3, 19)
    if not per_head:
        slot, write = slot[:, 0], write[:, 0]
    before = [x.clone() for x in arrays]

    def call():
        given = [x.clone() for x in before] if donate else arrays
        after = ops.write_slots(given, slot, new, write, axis=2, donate=donate)
        assert all(torch.equal(x, y) for x, y in zip(arrays, before, strict=True))
        return after

    plain, own = both(call)
    assert all(map(torch.equal, own, plain))
    assert launched["write_entries"] == 1


@drawn(st.integers(1, 3), st.integers(0, 3), st.integers(1, 30), st.integers(0, 99))
@settings(max_examples=10, **RELAXED)
def test_counts_of_evictions(batch, heads, count, seed):
    lead = (batch, heads) if heads else (batch,)
    rows, slots = batch * max(heads, 1), 30
    slot = shuffled(rows, slots, seed).reshape(*lead, slots)[..., :count]
    held = flags(*lead, slots, seed=seed), shuffled(rows, slots, seed + 1).reshape(*lead, slots)
    new = (
        flags(1, seed=seed).expand(*lead, count),
        torch.arange(20, 20 + count).expand(*lead, count),
    )
    held, new = ((one, two.to(torch.int32)) for one, two in (held, new))
    counts = torch.arange(batch, dtype=torch.int32), torch.full((batch,), 7, dtype=torch.int32)
    since = torch.arange(10, 10 + batch, dtype=torch.int32)
    write = flags(*lead, count, seed=seed + 2)
    plain, own = both(lambda: ops.count_evicted(counts, held, slot, new, write, since))
    assert all(map(torch.equal, own, plain))
    assert own[0].dtype == torch.int32


# ------------------------------------------------------------------ together


@pytest.mark.parametrize("present", ["visible", "compete"])
@pytest.mark.parametrize("policy", [at.LRA("sum"), at.LFA(decay=0.01)], ids=["LRA", "LFA"])
def test_steps_keep_the_same_entries(policy, present, launched):
    memory = at.KeyValueMemory(24, policy, present=present, per_head=present == "visible", sinks=2)
    layer = at.AttendreLayer(memory, causal=True, encoding=at.RoPE())

    def run():
        state = layer.init(batch=2, heads=4, kv_heads=2, head_dim=8, xp="torch", chunk=16)
        outputs = []
        for step in range(4):
            chunk = at.Chunk(*(noise(2, 16, n, 8, seed=3 * step + n) for n in (4, 2, 2)))
            state, output = layer.step(state, chunk, donate=True)
            outputs.append(output.value)
        return state.kv, outputs

    (plain, outputs), (own, others) = both(run)
    for name in ("position", "valid", "arrival", "evictions", "refusals", "clock", "observed"):
        assert torch.equal(getattr(own, name), getattr(plain, name)), name
    torch.testing.assert_close(own.score, plain.score, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(others, outputs, rtol=1e-4, atol=1e-5)
    assert torch.equal(own.key, plain.key)
    assert launched["rotate"] == 8
    assert all(launched.values()), launched


def test_gradients_and_transforms_go_through_other_kernels(launched):
    x, position = noise(1, 2, 4, 8), torch.arange(4, dtype=torch.int32)
    frequency = torch.ones(4)
    with fused_kernels("interpreted"), as_on_a_device():
        ops.rotate_at(x.requires_grad_(), position, frequency).sum().backward()
        torch.func.vmap(lambda y: ops.rotate_at(y, position, frequency))(x.detach())
        assert launches.rotate_at(x.detach().double(), position, frequency) is NotImplemented
    assert x.grad is not None
    assert not any(launched.values())


def test_written_arrays_tell_autograd(launched):
    array, new = noise(1, 1, 4, 2), noise(1, 1, 1, 2, seed=1)
    weight = torch.ones(2, requires_grad=True)
    product = (array * weight).sum()
    with fused_kernels("interpreted"), as_on_a_device(), torch.no_grad():
        slot = torch.zeros(1, 1, dtype=torch.int64)
        ops.write_slots([array, array.clone()], slot, [new, new], slot == 0, axis=2, donate=True)
    assert launched["write_entries"] == 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
