"""Expire-Span and dynamic context pruning are their formulas, mask and eviction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.learned import EXPIRE, PRUNE, SPAN, expiring, pruning, run

pytestmark = pytest.mark.attendre_profile("laws")


@pytest.mark.parametrize("size", [5, 12])
def test_expire_span_is_its_formula(backend: Any, size: int) -> None:
    want, kept = expiring(size, causal=size == 5)
    got, held, state = run(backend, EXPIRE, SPAN, size, causal=size == 5)
    assert held == kept
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert tuple(state.score.shape) == (1, size)


@pytest.mark.parametrize("alpha", [1.0, 1.5, 2.0])
def test_context_pruning_is_its_formula(backend: Any, alpha: float) -> None:
    if backend.name == "jax" and alpha != 1.5:
        pytest.skip("compiling takes seconds; the other libraries have shown it")
    want, kept = pruning(6, alpha)
    got, held, _ = run(backend, at.DynamicContextPruning(alpha), PRUNE, 6)
    assert held == kept
    np.testing.assert_allclose(got, want, atol=2e-5)


def test_masks_matter(backend: Any) -> None:
    """The streams above fade entries out, drop some for good, and evict others than FIFO does."""
    fifo, last, _ = run(backend, at.FIFO(), {}, 7)
    for policy, params in ((EXPIRE, SPAN), (at.DynamicContextPruning(), PRUNE)):
        output, kept, _ = run(backend, policy, params, 7)
        assert kept != last
        assert np.abs(output - fifo).max() > 0.1
    state = run(backend, at.DynamicContextPruning(), PRUNE, 16)[2]
    assert (state.score == 0).any()
    assert ((state.score > 0) & (state.score < 1)).any()


def test_an_expired_entry_is_as_good_as_evicted(backend: Any) -> None:
    """A memory of longest + ramp entries gives what a memory of the whole input does."""
    whole, _, _ = run(backend, EXPIRE, SPAN, 16, causal=True)
    part, kept, _ = run(backend, EXPIRE, SPAN, EXPIRE.longest + EXPIRE.ramp, causal=True)
    np.testing.assert_allclose(part, whole, atol=2e-5)
    assert len(kept[-1]) == 12


@pytest.mark.parametrize(
    ("policy", "params"), [(EXPIRE, SPAN), (at.DynamicContextPruning(), PRUNE)]
)
def test_chunks_change_nothing_where_nothing_is_evicted(
    backend: Any, policy: at.Policy, params: dict[str, Any]
) -> None:
    few, _, state = run(backend, policy, params, 16, causal=True)
    many, _, other = run(backend, policy, params, 16, causal=True, chunks=[[t] for t in range(16)])
    np.testing.assert_allclose(many, few, atol=2e-5)
    order, order2 = np.argsort(state.position[0]), np.argsort(other.position[0])
    np.testing.assert_allclose(other.score[0][order2], state.score[0][order], atol=1e-5)
