"""The references that a step is measured against, written directly in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attendre_core import numba_kernels
from attendre_core.backend import machine_code
from attendre_core.speed.steps import Variant
from attendre_torch.compiling import compiled_step as compiled_layer

__all__ = [
    "HandWritten",
    "attention_variants",
    "compiled",
    "compiled_layer",
    "compiled_step",
    "dense_attention",
    "fused_attention",
    "gathered_attention",
    "inference",
    "step_variants",
]

#: Nothing is recorded for gradients, neither in our steps nor in the references.
inference = torch.no_grad
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))


def fused_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend with PyTorch's fused kernel; all arrays (batch, heads, n, dim)."""
    return scaled_dot_product_attention(query, key, value)


def dense_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend by matrix product, softmax, matrix product."""
    logits = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    return logits.softmax(-1) @ value


def gathered_attention(query: Tensor, key: Tensor, value: Tensor, top_k: int) -> Tensor:
    """Attend to the top K by gathering their values; similarities are computed only once."""
    batch, heads, count, dim = query.shape
    logits = query @ key.transpose(-1, -2) * dim**-0.5
    best, index = logits.topk(top_k, dim=-1, sorted=False)
    first = torch.arange(0, batch * heads * key.shape[2], key.shape[2]).reshape(batch, heads, 1, 1)
    rows = value.reshape(-1, dim).index_select(0, (index + first).reshape(-1))
    rows = rows.reshape(batch, heads, count, top_k, dim)
    return (best.softmax(-1)[..., None, :] @ rows)[..., 0, :]


def step_variants() -> Iterator[Variant]:
    """Yield the ways in which a step with top K can run."""
    if numba_kernels.installed():
        yield Variant(
            "compiled step in machine code", nullcontext, lambda layer, _: compiled_layer(layer)
        )
        yield Variant("eager step in machine code", nullcontext, None)
    yield Variant("eager step in calls of the library", partial(machine_code, False), None)


def attention_variants() -> Iterator[tuple[str, Any]]:
    """Yield the ways in which eager attention to the top K can run."""
    if numba_kernels.installed():
        yield "in machine code", nullcontext
    yield "in calls of the library", partial(machine_code, False)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with the default code generator."""
    result: Callable[..., Any] = torch.compile(function, fullgraph=True)
    return result


compiled_step = compiled


class HandWritten:
    """LRA-sum with initial score mu over a full memory, as one would write it for only this case.

    It has no padding, no empty slots (its output is right only once the memory is full), no
    metadata and no options: sort the scores, overwrite the slots with the lowest, attend with the
    fused kernel, and compute the new scores from one summed query per head.
    """

    def __init__(self, size: int, heads: int, dim: int, seq: int) -> None:
        self.key = torch.zeros(1, heads, size, dim)
        self.value = torch.zeros(1, heads, size, dim)
        self.position = torch.arange(size) - size
        self.score = torch.full((size,), -torch.inf)
        self.size, self.clock, self.scale = size, 0, dim**-0.5

    def __call__(self, chunk: Any) -> Tensor:
        """Insert a chunk, evict, attend, score."""
        return self._step(*(x.transpose(1, 2) for x in (chunk.query, chunk.key, chunk.value)))

    def _step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        seq = key.shape[2]
        known = self.score[self.score > -torch.inf]
        start = known.mean() if len(known) else torch.zeros(())
        # A stable sort in the order of positions, so that the older of two equals is evicted.
        order = torch.argsort(self.position)
        worst = order[torch.argsort(self.score[order], stable=True)[:seq]]
        slot = worst[self.score[worst] <= start]
        taken = slice(seq - len(slot), seq)
        self.key[:, :, slot] = key[:, :, taken]
        self.value[:, :, slot] = value[:, :, taken]
        self.position[slot] = torch.arange(self.clock, self.clock + seq)[taken]
        self.score[slot] = start
        self.clock += seq
        out = scaled_dot_product_attention(query, self.key, self.value, scale=self.scale)
        total = query.sum(2, keepdim=True) * self.scale
        score = (total @ self.key.transpose(-1, -2)).sum((0, 1, 2))
        self.score = torch.where(self.position >= 0, score, -torch.inf)
        return out.transpose(1, 2)
