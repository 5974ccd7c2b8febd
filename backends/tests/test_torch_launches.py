"""How many operations an eager step starts on an accelerator; see `torch_launches`."""

import pytest

import attendre_core as at

pytest.importorskip("torch")

from attendre_core.speed.torch_launches import launches

#: At most so many, over all and over the top 128. Lower a limit when the count falls.
ALL, TOP = 180, 190
CASES = [
    (policy, encoding, present, kv_heads)
    for policy in (at.LRA("sum"), at.LFA())
    for encoding in (at.NoPosition(), at.RoPE())
    for present in ("visible", "compete")
    for kv_heads in (8, 2)
]


@pytest.mark.parametrize(("top_k", "most"), [(None, ALL), (128, TOP)])
def test_a_step_starts_few_operations(top_k, most):
    for policy, encoding, present, kv_heads in CASES:
        counts = launches(policy, encoding, top_k=top_k, present=present, kv_heads=kv_heads)
        told = f"{counts.total()} operations: {counts.most_common()}"
        assert counts.total() <= most, f"{policy}, {encoding}, {present}, {kv_heads}: {told}"
