"""Train a model whose heads are spread over processes, through memories of fixed size.

Each process holds some of the heads of every layer: their weights, and their keys and values in
the memories. Scores are added up over all heads, so all processes keep the same entries.

Run it with ``torchrun --nproc-per-node 2 torchrun_heads.py``. It uses one GPU per process if there
are enough, and the CPU otherwise; ``python torchrun_heads.py`` trains the same model in one
process, and prints the same losses up to rounding.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.functional import cross_entropy

import attendre_core as at
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.llama import Llama
from attendre_torch import TrainableModel, shard_heads

LLAMA = Llama(
    layers=2, dim=64, heads=8, kv_heads=4, head_dim=8, hidden=128, vocabulary=64,
    context=1024, rope=at.RoPE(), tied=True,
)  # fmt: skip
MEMORY = "attendre-causal+chunk=16:32"


def make_model(device: str, mesh: DeviceMesh | None) -> TrainableModel:
    """Make the same model in every process, then leave each its heads."""
    draw = torch.Generator().manual_seed(0)

    def first(tensor: Any) -> torch.Tensor:
        numbers = 0.1 * torch.randn(tensor.shape, generator=draw)
        return (numbers + 1.0 if "norm" in tensor.name else numbers).to(device)

    params = tree_map(first, LLAMA.parameters())
    model = TrainableModel(at.Model(LLAMA, params, memory=at.preset(MEMORY), library="torch"))
    return model if mesh is None else shard_heads(model, mesh)


def train(model: TrainableModel, tokens: torch.Tensor, steps: int) -> list[float]:
    """Learn the text by heart, with a backward pass after every two chunks; return the losses."""
    # Linear maps are DTensors now, norms are not: foreach cannot update both in one call.
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        total = 0.0
        for segment in model.segments(tokens[:, :-1], detach_every=2):
            wanted = tokens[:, 1:].gather(1, segment.place)
            loss = cross_entropy(segment.output.flatten(0, 1), wanted.flatten(), reduction="sum")
            loss = loss / wanted.shape[0] / (tokens.shape[1] - 1)
            loss.backward()
            total += loss.item()
        optimiser.step()
        losses.append(total)
    return losses


def main(steps: int = 5) -> None:
    """Set up the processes, train, and say what came out."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    device, mesh = "cuda" if torch.cuda.device_count() >= world else "cpu", None
    if world > 1:
        if device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
        mesh = init_device_mesh(device, (world,), mesh_dim_names=("heads",))
    model = make_model(device, mesh)
    tokens = torch.randint(0, 64, (2, 161), generator=torch.Generator().manual_seed(1)).to(device)
    losses = train(model, tokens, steps)
    weight = model.weights.layers.get_submodule("0").q.weight
    own = weight.to_local() if mesh is not None else weight
    if rank == 0:
        heads = own.shape[0] // LLAMA.head_dim
        print(f"processes: {world}, with {heads} of {LLAMA.heads} heads each")
        print("losses " + " ".join(f"{loss:.5f}" for loss in losses))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
