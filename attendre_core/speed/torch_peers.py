"""The memory layer of memorizing-transformers-pytorch, set up to be measured against ours."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from memorizing_transformers_pytorch.knn_memory import KNNMemory
from memorizing_transformers_pytorch.memorizing_transformers_pytorch import KNNAttention
from torch import nn

from attendre_core.layer import AttendreLayer, Chunk
from attendre_core.memory import KeyValueMemory

__all__ = ["memorizing_layers"]


def memorizing_layers(
    size: int, top_k: int, heads: int, dim: int, seq: int
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return one step of memorizing-transformers-pytorch's memory layer, and one of ours.

    Both project the same inputs, have one K/V head, hold ``size`` entries and retrieve ``top_k``
    of them per query; both memories are full. There are more different inputs than the memories
    hold, so no two entries are equal.
    """
    inputs = [torch.randn(1, seq, heads * dim) for _ in range(size // seq + 4)]
    for_them, for_us = cycle(inputs), cycle(inputs)
    theirs = KNNAttention(
        dim=heads * dim, heads=heads, dim_head=dim, num_retrieved_memories=top_k
    ).eval()
    folder = tempfile.mkdtemp(prefix="attendre-peer-")
    memory = KNNMemory(
        dim=dim, max_memories=size, memmap_filename=str(Path(folder) / "knn"), multiprocessing=False
    )
    ours = _Ours(AttendreLayer(KeyValueMemory(size), top_k=top_k), heads, dim).eval()

    def their_step() -> Any:
        with torch.inference_mode():
            return theirs(next(for_them), knn_memory=memory)

    def our_step() -> Any:
        with torch.inference_mode():
            return ours(next(for_us))

    for _ in range(size // seq + 2):
        their_step()
        our_step()
    return their_step, our_step


class _Ours(nn.Module):  # type: ignore[misc]
    """Our layer, with the same projections as theirs."""

    def __init__(self, layer: AttendreLayer, heads: int, dim: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, heads
        self.to_q = nn.Linear(heads * dim, heads * dim, bias=False)
        self.to_kv = nn.Linear(heads * dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(heads * dim, heads * dim, bias=False)
        self.state = layer.init(batch=1, heads=heads, kv_heads=1, head_dim=dim, xp=torch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = self.to_q(x).unflatten(-1, (self.heads, -1))
        key, value = self.to_kv(x).unsqueeze(2).chunk(2, dim=-1)
        self.state, out = self.layer.step(self.state, Chunk(query, key, value), donate=True)
        result: torch.Tensor = self.to_out(out.value.flatten(2))
        return result
