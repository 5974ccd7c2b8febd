"""Layers that cannot work, and chunks that do not fit, are explained."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.layer.running import LayerRunner
from attendre_conformance.layer.texts import STREAM, seeded_text
from attendre_conformance.running import from_numpy, to_numpy

pytestmark = pytest.mark.attendre_profile("laws")


@pytest.mark.parametrize(("size", "delay"), [(4, 4), (3, 5), (1, 1)])
def test_n_must_be_smaller_than_m(size: int, delay: int) -> None:
    """N >= M is refused with M, N, the reason, and what to use instead.

    Specification, reading 26.
    """
    with pytest.raises(at.ConfigError) as caught:
        at.AttendreLayer(at.KeyValueMemory(size), at.DataOnlyMemory(delay))
    message = str(caught.value)
    for part in (f"N = {delay}", f"M = {size}", "N < M", "evicted", "half of M"):
        assert part in message, f"the message does not say {part!r}: {message}"
    use = message.partition("Use N = ")[2]
    suggested = int("".join(c for c in use.split(",")[0] if c.isdigit()) or -1)
    if size > 1:
        at.AttendreLayer(at.KeyValueMemory(size), at.DataOnlyMemory(suggested))


def test_top_k_must_fit() -> None:
    """K > M is refused with both numbers.

    Specification, reading 17.
    """
    with pytest.raises(at.ConfigError, match=r"top_k is 7.* 5 slots") as caught:
        at.AttendreLayer(at.KeyValueMemory(5), top_k=7)
    assert "top_k=None" in str(caught.value), f"no advice in: {caught.value}"


def test_state_of_another_layer(backend: Any) -> None:
    """A state of a layer with another M or N, with or without a queue, is refused by name."""
    text = seeded_text(STREAM, 0)
    layer = at.AttendreLayer(at.KeyValueMemory(6), at.DataOnlyMemory(2))
    others = {
        "another M": at.AttendreLayer(at.KeyValueMemory(7), at.DataOnlyMemory(2)),
        "another N": at.AttendreLayer(at.KeyValueMemory(6), at.DataOnlyMemory(3)),
        "no queue": at.AttendreLayer(at.KeyValueMemory(6)),
    }
    chunk = from_numpy(backend, text.chunks(STREAM.seq)[0])
    for what, other in others.items():
        state = LayerRunner(backend, other).init(text, STREAM.seq)
        with pytest.raises(at.StateError) as caught:
            layer.step(state, chunk)
        assert "state" in str(caught.value), f"{what}: {caught.value}"
        with pytest.raises(at.StateError) as caught:
            layer.flush(state)
        assert "state" in str(caught.value), f"{what}: {caught.value}"
    with pytest.raises(at.StateError, match="LayerState"):
        layer.step(LayerRunner(backend, layer).init(text, STREAM.seq).kv, chunk)


def test_chunk_longer_than_the_memory_warns_and_works(backend: Any) -> None:
    """S > M warns with the numbers, does not crash, and refuses as many as it says."""
    text, seq = seeded_text(STREAM, 3), 6
    layer = at.AttendreLayer(at.KeyValueMemory(4, at.LFA()), at.DataOnlyMemory(2), trace=True)
    runner = LayerRunner(backend, layer)
    state = runner.init(text, seq)
    first, second = text.chunks(seq)
    with pytest.warns(at.ChunkTooLongWarning) as caught:
        state, out = runner.step(state, first)
    message = str(caught[0].message)
    for part in ("6 positions", "holds 4", "at least 2", "at most 4"):
        assert part in message, f"the warning does not say {part!r}: {message}"
    for chunk in (first, second):
        if chunk is second:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", at.ChunkTooLongWarning)
                state, out = runner.step(state, second)
        offered = chunk.position.tolist()
        for b in range(STREAM.batch):
            refused = set(out.trace.evicted[b].tolist()) & set(offered[b])
            assert len(refused) >= 2, f"row {b}: refused {sorted(refused)}, said at least 2"
        assert np.isfinite(out.value).all(), "outputs are not finite"
        held = to_numpy(backend, state.kv).valid.sum(axis=1).tolist()
        assert set(held) == {4}, f"holds {held}, M is 4"


def test_chunk_that_fits_does_not_warn(backend: Any) -> None:
    """S = M is fine, and in visible mode any S is: the own chunk is attended to in its step."""
    text = seeded_text(STREAM, 3)
    layer = at.AttendreLayer(at.KeyValueMemory(4, at.LFA()), at.DataOnlyMemory(2))
    visible = replace(layer, kv_memory=at.KeyValueMemory(4, present="visible"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for spec, seq in ((visible, 6), (layer, 4)):
            runner = LayerRunner(backend, spec)
            runner.step(runner.init(text, seq), text.chunks(seq)[0])
