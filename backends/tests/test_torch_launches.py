"""How many operations an eager step starts on an accelerator; see `torch_launches`."""

import pytest

import attendre_core as at

pytest.importorskip("torch")

import torch

from attendre_core import ops
from attendre_core.backend import backend, fused_kernels
from attendre_core.speed.torch_launches import launches
from attendre_torch import launches as launches_of
from attendre_torch.looking import as_on_a_device

#: At most so many, over all and over the top 128, with and without Triton. Lower a limit when the
#: count falls.
LIMITS = [("auto", None, 90), ("auto", 128, 98), ("off", None, 142), ("off", 128, 150)]
CASES = [
    (policy, encoding, present, kv_heads)
    for policy in (at.LRA("sum"), at.LFA())
    for encoding in (at.NoPosition(), at.RoPE())
    for present in ("visible", "compete")
    for kv_heads in (8, 2)
]


@pytest.mark.parametrize(("mode", "top_k", "most"), LIMITS)
def test_a_step_starts_few_operations(mode, top_k, most):
    if mode == "auto":
        pytest.importorskip("triton")
    for policy, encoding, present, kv_heads in CASES:
        with fused_kernels(mode):
            counts = launches(policy, encoding, top_k=top_k, present=present, kv_heads=kv_heads)
        told = f"{counts.total()} operations: {counts.most_common()}"
        assert counts.total() <= most, f"{policy}, {encoding}, {present}, {kv_heads}: {told}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotating_in_few_launches_gives_the_same(dtype):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8).to(dtype).mT.contiguous().mT
    position, frequency = torch.arange(5, dtype=torch.int32) * 1000, torch.rand(4).to(dtype)
    with torch.no_grad():
        plain = ops.rotate_at(x, position, frequency)
        with as_on_a_device(), fused_kernels("off"):
            few = launches_of.rotate_at(x, position, frequency)
    assert torch.equal(few, plain)


# ------------------------------------------------------------------ kept numbers


def made(xp, x):
    device = x.device
    return [
        xp.arange(3, dtype=xp.int32, device=device),
        xp.arange(2, 9, 3, dtype=xp.int64, device=device),
        xp.full((2, 3), True, dtype=xp.bool, device=device),
        xp.zeros_like(x),
        xp.ones_like(x, dtype=xp.bool),
        xp.full_like(x, -7),
        xp.where(x > 1, x, 2**31 - 1),
        xp.where(x > 1, -5, x),
        xp.where(x > 1, x * 0.5, -float("inf")),
    ]


def test_kept_numbers_are_what_would_be_made():
    xp, x = backend("torch").xp, torch.arange(4, dtype=torch.int32)
    plain = made(xp, x)
    with as_on_a_device():
        for _ in range(2):
            for kept, one in zip(made(xp, x), plain, strict=True):
                assert kept.dtype == one.dtype
                assert torch.equal(kept, one)


def test_a_kept_number_that_was_written_to_is_made_again():
    xp = backend("torch").xp
    with as_on_a_device():
        for x in (torch.zeros(1), torch.zeros(2, 3)):
            xp.ones_like(x).fill_(5.0)
            assert (xp.ones_like(x) == 1.0).all()


def test_traces_and_transforms_keep_nothing():
    from torch._subclasses.fake_tensor import FakeTensorMode

    xp = backend("torch").xp
    with as_on_a_device():
        with FakeTensorMode():
            xp.arange(77, dtype=xp.int32, device=torch.device("cpu"))
        assert type(xp.arange(77, dtype=xp.int32, device=torch.device("cpu"))) is torch.Tensor
        doubled = torch.func.vmap(lambda x: xp.zeros_like(x) + x + xp.where(x > 0, x, 0.0))
        assert doubled(torch.ones(2, 3)).sum() == 12
