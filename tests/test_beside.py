"""Entries beside a memory: sinks, layers, gradients and mistakes.

That they share one softmax with the stored entries is in `attendre_conformance.beyond`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_conformance.beyond.test_beside import attended, normal
from attendre_core import backend as backends


def library(name: str) -> backends.Backend:
    pytest.importorskip(name)
    return backends.backend(name)


def test_a_sink_keeps_its_share() -> None:
    """The logit of an encoding's sink counts once, not once in each part."""

    @dataclass(frozen=True)
    class Sunk(at.Encoding):
        def encode(self, query: Any, key: Any, places: Any, params: Any = None) -> Any:
            encoded = at.RoPE().encode(query, key, places)
            return encoded._replace(sink=np.full((1, 1, 1, 1, 1), 0.7, dtype=np.float32))

    numpy = library("numpy")
    for top in ({}, {"top_k": 12}):
        whole, scores = attended(numpy, 12, slice(0, 12), None, encoding=Sunk(), **top)
        part, others = attended(numpy, 7, slice(5, 12), slice(0, 5), encoding=Sunk())
        np.testing.assert_allclose(part, whole, atol=2e-6)
        np.testing.assert_allclose(others[7], scores[7], atol=2e-6)


@pytest.mark.parametrize("delay", [0, 3])
def test_a_layer_attends_to_what_is_beside_its_chunk(delay: int) -> None:
    """Slots beside every step and the flush, against a loop over the queries."""
    queue = at.DataOnlyMemory(delay) if delay else None
    layer = at.AttendreLayer(at.KeyValueMemory(16), queue, encoding=at.RoPE())
    query, key, value, slots = (normal(seed, 1, 8, 2, 4) for seed in (1, 2, 3, 4))
    beside = at.Beside(slots[:, :2], slots[:, 2:4])
    state, outputs = None, []
    for start in (0, 4):
        part = slice(start, start + 4)
        chunk = at.Chunk(query[:, part], key[:, part], value[:, part], beside=beside)
        state = layer.init(like=chunk) if state is None else state
        state, out = layer.step(state, chunk)
        outputs.append(out.value[out.valid])
    state, out = layer.flush(state, beside=beside)
    found = np.concatenate([*outputs, out.value[out.valid]])
    full = at.KeyValueMemory(8)
    for number in range(8):
        # What a query sees: all that was read when it left the queue.
        last = min(8, (number + delay) // 4 * 4 + 4)
        held, _ = full.insert(full.init(like=key), key[:, :last], value[:, :last])
        where = np.full((1, 1), number, dtype=np.int32)
        _, wanted = full.attend(
            held, query[:, number : number + 1], where, encoding=at.RoPE(), beside=beside
        )
        np.testing.assert_allclose(found[number], wanted[0, 0], atol=2e-6)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_gradients_flow_to_what_is_beside(name: str) -> None:
    xp, memory = library(name), at.KeyValueMemory(4, at.LFA(score="softmax"))
    key, value, query, other = (normal(seed, 1, 2, 1, 3) for seed in (1, 2, 3, 4))

    def loss(slots: Any) -> Any:
        k, v, q = (xp.from_numpy(x) for x in (key, value, query))
        state, _ = memory.insert(memory.init(like=k), k, v)
        _, output = memory.attend(state, q, beside=at.Beside(slots, 2.0 * slots))
        return (output * output).sum()

    if name == "torch":
        import torch

        slots = torch.tensor(other, requires_grad=True)
        loss(slots).backward()
        found = slots.grad.numpy()
    else:
        import jax

        found = np.asarray(jax.jit(jax.grad(loss))(xp.from_numpy(other)))
    for place in np.ndindex(other.shape):
        step = np.zeros_like(other)
        step[place] = 1e-2
        high, low = (float(loss(xp.from_numpy(other + sign * step))) for sign in (1, -1))
        np.testing.assert_allclose(found[place], (high - low) / 2e-2, rtol=2e-2, atol=2e-3)


def test_what_does_not_fit_beside_is_refused() -> None:
    memory, key = at.KeyValueMemory(4), normal(1, 2, 3, 2, 4)
    state = memory.init(like=key)
    cases = [
        (at.Beside(key[:, :, :1], key), at.ShapeError, r"beside\.key has shape"),
        (at.Beside(key, key[:, :2]), at.ShapeError, r"beside\.value has shape"),
        (at.Beside(key.astype(np.float64), key), at.DTypeError, r"beside\.key has dtype"),
        (at.Beside(key, key, key[:, :, 0, 0]), at.DTypeError, r"beside\.valid"),
        (at.Beside(key, key * np.nan), at.NonFiniteError, r"beside\.value has NaN"),
        (at.Beside(key, key, position=key[:, :, 0, 0]), at.DTypeError, r"beside\.position"),
    ]
    for beside, error, message in cases:
        with pytest.raises(error, match=message):
            memory.attend(state, key, beside=beside)
