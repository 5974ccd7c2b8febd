"""Transformer-XL: its cache with its relative positions, held against its formula and XLNet's code.

The cache is the preset ``Transformer-XL``, the positions are `TransformerXLPositions`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.backend import backend

HEADS, DIM, WIDTH, CACHE, SEGMENT, LENGTH = 2, 4, 6, 8, 4, 24


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def sinusoids(distance: np.ndarray, width: int) -> np.ndarray:
    angle = distance[..., None] / 10000 ** (np.arange(0, width, 2) / width)
    return np.concatenate([np.sin(angle), np.cos(angle)], axis=-1)


def reference(
    query: np.ndarray, key: np.ndarray, value: np.ndarray, table: np.ndarray
) -> np.ndarray:
    """Attend as the paper says: the four products (a) to (d) of every pair, segment by segment."""
    project, u, v = table[:WIDTH], table[WIDTH], table[WIDTH + 1]
    output = np.zeros_like(query)
    for start in range(0, LENGTH, SEGMENT):
        seen = range(max(0, start - CACHE), start + SEGMENT)
        for i in range(start, start + SEGMENT):
            for h in range(HEADS):
                logits = []
                for j in (j for j in seen if j <= i):
                    r = sinusoids(np.asarray(i - j), WIDTH) @ project[:, h]
                    content, place = query[i, h] @ key[j, h], query[i, h] @ r
                    logits.append(content + place + u[h] @ key[j, h] + v[h] @ r)
                raised = np.exp(np.asarray(logits) / np.sqrt(DIM))
                held = value[seen.start : i + 1, h]
                output[i, h] = (raised / raised.sum()) @ held
    return output


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("library", ["numpy", "torch", "jax"])
def test_cache_and_positions_are_those_of_the_paper(library: str) -> None:
    pytest.importorskip(library)
    found = backend(library)
    query, key, value = (numbers(LENGTH, HEADS, DIM, seed=n).astype(np.float32) for n in range(3))
    table = numbers(WIDTH + 2, HEADS, DIM, seed=3).astype(np.float32)
    memory = at.preset("Transformer-XL", CACHE, chunk=SEGMENT).kv_memory()
    layer = at.AttendreLayer(memory, causal=True, encoding=at.TransformerXLPositions(WIDTH))
    state = layer.init(batch=1, heads=HEADS, head_dim=DIM, xp=library, chunk=SEGMENT)
    outputs = []
    for start in range(0, LENGTH, SEGMENT):
        part = slice(start, start + SEGMENT)
        chunk = at.Chunk(*(found.from_numpy(x[None, part]) for x in (query, key, value)))
        state, out = layer.step(state, chunk, encoding_params=found.from_numpy(table))
        outputs.append(np.asarray(found.to_numpy(out.value))[0])
    want = reference(*(x.astype(np.float64) for x in (query, key, value, table)))
    np.testing.assert_allclose(np.concatenate(outputs), want, rtol=2e-5, atol=2e-5)


def test_positions_are_those_of_xlnet() -> None:
    """XLNet took Transformer-XL's attention over; its code in transformers is a second opinion."""
    torch = pytest.importorskip("torch")
    xlnet = pytest.importorskip("transformers.models.xlnet.modeling_xlnet")
    length, width = 7, HEADS * DIM
    config = xlnet.XLNetConfig(d_model=width, n_head=HEADS, d_head=DIM, dropout=0.0)
    attention = xlnet.XLNetRelativeAttention(config)
    query, key, value = (
        torch.tensor(numbers(length, 1, HEADS, DIM, seed=n), dtype=torch.float32) for n in range(3)
    )
    table = torch.tensor(numbers(width + 2, HEADS, DIM, seed=3), dtype=torch.float32)
    distance = np.arange(length, -length, -1)
    placed = torch.tensor(sinusoids(distance, width), dtype=torch.float32)
    with torch.no_grad():
        attention.r_w_bias.copy_(table[width])
        attention.r_r_bias.copy_(table[width + 1])
        rows = torch.einsum("ih,hnd->ind", placed, table[:width])[:, None]
        want = attention.rel_attn_core(query, key, value, rows)
    memory = at.KeyValueMemory(length)
    state = memory.init(batch=1, heads=HEADS, head_dim=DIM, xp="torch")
    state, _ = memory.insert(state, key.transpose(0, 1), value.transpose(0, 1))
    _, got = memory.attend(
        state,
        query.transpose(0, 1),
        encoding=at.TransformerXLPositions(width),
        encoding_params=table,
    )
    torch.testing.assert_close(got.transpose(0, 1), want, rtol=2e-5, atol=2e-5)


def test_modules_train_the_projection_and_both_biases() -> None:
    torch = pytest.importorskip("torch")
    attendre_torch = pytest.importorskip("attendre_torch")
    module = attendre_torch.AttendreAttention(
        8, HEADS, memory=CACHE, causal=True, encoding=at.TransformerXLPositions(WIDTH)
    )
    assert module.table.shape == (WIDTH + 2, HEADS, DIM)
    with torch.no_grad():
        module.table.normal_()
    x = torch.tensor(numbers(1, 6, 8), dtype=torch.float32)
    module(x)[0].square().sum().backward()
    assert (module.table.grad.abs().amax(dim=(1, 2)) > 0).all(), module.table.grad


def test_far_pairs_are_as_exact_as_rotations() -> None:
    """Positions count from the last query, so a million tokens later nothing has changed."""
    table: Any = numbers(WIDTH + 2, HEADS, DIM, seed=3).astype(np.float32)
    memory = at.KeyValueMemory(4)
    outputs = []
    for first in (0, 10**6):
        state = memory.init(batch=1, heads=HEADS, head_dim=DIM)
        place = np.arange(4, dtype=np.int32)[None] + first
        content = numbers(1, 4, HEADS, DIM).astype(np.float32)
        state, _ = memory.insert(state, content, content, place)
        encoding = at.TransformerXLPositions(WIDTH)
        outputs.append(
            memory.attend(state, content, place, encoding=encoding, encoding_params=table)[1]
        )
    np.testing.assert_array_equal(*outputs)
