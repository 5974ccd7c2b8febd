"""Checks of heads that are spread over processes, against one process that holds all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import attendre_core as at
from attendre_core.ops import over_heads
from attendre_torch import (
    AttendreAttention,
    HeadParallel,
    compiled_step,
    head_group,
    heads,
    shard_heads,
)

SIZE, CHUNK, DIM, BATCH = 16, 8, 32, 2
#: Policies and options, by name.
CASES: dict[str, dict[str, Any]] = {
    "LFA": {"policy": at.LFA()},
    "LRA-last": {"policy": at.LRA("last")},
    "LRA-max": {"policy": at.LRA("max")},
    "LRA-mean of heads": {"policy": at.LRA("sum", score="softmax", heads="mean")},
    "LRU": {"policy": at.LRU(), "top_k": 3},
    "LFU": {"policy": at.LFU(), "top_k": 3},
    "H2O": {"policy": at.H2O()},
    "TOVA": {"policy": at.TOVA()},
    "Q memory": {"policy": at.LFA(), "q_memory": 8, "causal": False},
    "T5": {"policy": at.LFA(), "encoding": at.T5Bias()},
    "bias": {"policy": at.LFA(), "bias": True},
    "FIFO": {"policy": at.FIFO()},
    "per head": {"memory": at.KeyValueMemory(SIZE, at.LFA(), per_head=True)},
    "visible": {"memory": at.KeyValueMemory(SIZE, at.H2O(), present="visible")},
    "tiers": {
        "memory": at.Tiers(
            at.KeyValueMemory(SIZE // 2, at.H2O()),
            at.Tier(at.KeyValueMemory(SIZE // 2, at.LFA()), compress=at.MostUsed(2)),
        )
    },
    "merge": {
        "memory": at.Tiers(
            at.KeyValueMemory(SIZE // 2, at.LFA()),
            at.Tier(at.KeyValueMemory(SIZE // 2), compress=at.Merge()),
        )
    },
}


def mesh() -> Any:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def attention(**options: Any) -> AttendreAttention:
    torch.manual_seed(0)
    options = {"memory": SIZE, "causal": True, "encoding": at.RoPE(), **options}
    made = AttendreAttention(dim=DIM, heads=8, kv_heads=4, **options)
    if made.table is not None:
        torch.nn.init.normal_(made.table)
    return made


def chunks(number: int = 5) -> torch.Tensor:
    return torch.randn(number, BATCH, CHUNK, DIM, generator=torch.Generator().manual_seed(1))


def read(module: Any, xs: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
    """Return the outputs, and the state after each chunk."""
    state, outputs, states = None, [], []
    for x in xs:
        out, state = module.step(x, state) if module.delay else module(x, state)
        outputs.append(out.x if module.delay else out)
        states.append(state)
    return torch.stack(outputs), states


def by_process(x: torch.Tensor) -> list[torch.Tensor]:
    """Return a tensor as each process has it."""
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(found, x.contiguous())
    return found


def own_heads(x: torch.Tensor, axis: int = 1) -> torch.Tensor:
    return x.chunk(dist.get_world_size(), axis)[dist.get_rank()]


class Traffic(TorchDispatchMode):
    """Counts collectives by the shape of what is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: Counter[tuple[int, ...]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in ("c10d", "_c10d_functional") and "all_reduce" in func.__name__:
            self.sent[tuple(args[0].shape)] += 1
        elif func.namespace == "c10d":
            self.sent["other"] += 1
        return func(*args, **(kwargs or {}))


def same_entries_as_one_process(folder: Path) -> None:
    """Kept slots are equal after every step, outputs and scores up to rounding."""
    xs = chunks()
    for name, options in CASES.items():
        with torch.no_grad():
            want, kept = read(attention(**options), xs)
            found, own = read(shard_heads(attention(**options), mesh()), xs)
        torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5, msg=name)
        per_head = kept[0].kv.score.ndim == 3
        for before, after in zip(kept, own, strict=True):
            one = own_heads if per_head else lambda x: x
            assert torch.equal(after.kv.position, one(before.kv.position)), name
            torch.testing.assert_close(after.kv.score, one(before.kv.score), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(after.kv.key, own_heads(before.kv.key))
            if not per_head:  # the same bits everywhere: no process can decide otherwise
                assert len({x.numpy().tobytes() for x in by_process(after.kv.score)}) == 1, name
        assert own[-1].kv.evictions.sum() > 0, name


def gradients_as_in_one_process(folder: Path) -> None:
    xs = chunks(3)
    for name, options in (("LFA", {"bias": True}), ("T5", CASES["T5"])):
        one, spread = attention(**options), shard_heads(attention(**options), mesh())
        for module in (one, spread):
            read(module, xs)[0].square().mean().backward()
        for (path, want), (_, found) in zip(
            one.named_parameters(), spread.named_parameters(), strict=True
        ):
            got = found.grad.full_tensor()
            torch.testing.assert_close(got, want.grad, rtol=1e-4, atol=1e-6, msg=f"{name}, {path}")


def plans_of_the_caller(folder: Path) -> None:
    """``parallelize_module`` with its own styles, or with ours, gives the same."""
    xs, across = chunks(), mesh()
    with torch.no_grad():
        want, kept = read(attention(policy=at.LFA()), xs)
        plain = dict.fromkeys(("0.query", "0.key", "0.value"), ColwiseParallel())
        for plan in ({**plain, "0.out": RowwiseParallel()}, {"0": HeadParallel()}):
            model = torch.nn.ModuleList([attention(policy=at.LFA())])
            parallelize_module(model, across, plan)
            assert model[0].init_state(BATCH).kv.key.shape[1] == 4 // across.size()
            found, own = read(model[0], xs)
            torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
            assert torch.equal(own[-1].kv.position, kept[-1].kv.position)


def one_small_all_reduce_per_step(folder: Path) -> None:
    output, scores, flags = (BATCH, CHUNK, DIM), (BATCH, SIZE), (BATCH, CHUNK, SIZE)
    expected = {"LFA": scores, "LRA-max": scores, "TOVA": scores, "LFU": flags}
    for name in ("LFA", "LRA-max", "TOVA", "LFU", "FIFO", "per head"):
        module = shard_heads(attention(**CASES[name]), mesh())
        with torch.no_grad(), Traffic() as traffic:
            read(module, chunks(3))
        want = {output: 3} | ({expected[name]: 3} if name in expected else {})
        assert traffic.sent == want, f"{name}: {traffic.sent}"


def without_the_all_reduce_processes_disagree(folder: Path) -> None:
    """The comparison above can fail: this is what happens if scores are not combined."""
    with torch.no_grad(), patch.object(heads, "all_reduced", lambda x, how, name: x):
        _, own = read(shard_heads(attention(policy=at.LFA()), mesh()), chunks())
    positions = by_process(own[-1].kv.position)
    assert any(not torch.equal(positions[0], other) for other in positions[1:])


@dataclass(frozen=True)
class ByHand(at.Policy):
    """Adds up weights over the heads that it sees: here those of one process."""

    def observe(self, stored: Any, attention: Any) -> Any:
        return attention.weights.sum(dim=(1, 2, 3))


@dataclass(frozen=True)
class Together(at.Policy):
    """Does the same over all heads."""

    def observe(self, stored: Any, attention: Any) -> Any:
        return over_heads(attention.weights.sum(dim=3))


@dataclass(frozen=True)
class LongKeys(at.Policy):
    """Keeps long keys, which differ from head to head."""

    def priority(self, stored: Any) -> Any:
        return stored.key.square().sum(dim=(1, 3))


@dataclass(frozen=True)
class LongKeysFirst:
    """Lets new entries start with a score from their keys."""

    def score(self, stored: Any, new: Any) -> Any:
        return new.key.square().mean(dim=(1, 3))


def policies_that_see_one_process_are_refused(folder: Path) -> None:
    xs = chunks()
    for policy in (ByHand(), LongKeys(), at.LFA(initial=LongKeysFirst())):
        with pytest.raises(at.ConfigError, match="do not agree on its scores.*over_heads"):
            read(shard_heads(attention(policy=policy), mesh()), xs)
    with torch.no_grad():
        _, kept = read(attention(policy=Together()), xs)
        _, own = read(shard_heads(attention(policy=Together()), mesh()), xs)
    assert torch.equal(own[-1].kv.position, kept[-1].kv.position)


def compiled_layers_in_a_group(folder: Path) -> None:
    """`compiled_step` has a program of its own for each group."""
    layer = at.AttendreLayer(at.KeyValueMemory(SIZE, at.LFA()), causal=True)
    step = compiled_step(layer, backend="aot_eager", donate=False)
    plain_layers_in_a_group(folder, step)


def plain_layers_in_a_group(folder: Path, step: Any = None) -> None:
    """A layer of the core, with the heads of this process, inside of `head_group`."""
    layer = at.AttendreLayer(at.KeyValueMemory(SIZE, at.LFA()), causal=True)
    step = layer.step if step is None else step
    draw = torch.Generator().manual_seed(2)
    given = [
        at.Chunk(*(torch.randn(BATCH, CHUNK, heads, 4, generator=draw) for heads in (8, 4, 4)))
        for _ in range(4)
    ]
    one, own = layer.init(like=given[0]), None
    for chunk in given:
        one, want = step(one, chunk)
        mine = at.Chunk(*(own_heads(x, 2) for x in chunk[:3]))
        with head_group(dist.group.WORLD):
            own, found = step(layer.init(like=mine) if own is None else own, mine)
        torch.testing.assert_close(found.value, own_heads(want.value, 2), rtol=1e-5, atol=1e-5)
        assert torch.equal(own.kv.position, one.kv.position)


def compiled(folder: Path, backend: str = "aot_eager") -> None:
    """One graph, collectives included; a module of one process beside it keeps its own."""
    xs, options = chunks(), {"policy": at.LFA()}
    one, spread = attention(**options), shard_heads(attention(**options), mesh())
    with torch.no_grad():
        want, kept = read(one, xs)
        for module in (spread, one, spread):
            program = torch.compile(module, fullgraph=True, backend=backend)
            state, outputs = None, []
            for x in xs:
                out, state = program(x, state)
                outputs.append(out)
            torch.testing.assert_close(torch.stack(outputs), want, rtol=1e-5, atol=1e-5)
            assert torch.equal(state.kv.position, kept[-1].kv.position)


def compiled_by_inductor(folder: Path) -> None:
    compiled(folder, "inductor")


def states_are_saved_by_process(folder: Path) -> None:
    """A state holds the heads of its process; each process saves and loads its own."""
    module, xs = shard_heads(attention(policy=at.LFA()), mesh()), chunks()
    file = folder / f"state-{dist.get_rank()}.pt"
    with torch.no_grad():
        want, states = read(module, xs)
        torch.save(states[2], file)
        state = torch.load(file)
        assert type(state.kv.key) is torch.Tensor
        for i in (3, 4):
            out, state = module(xs[i], state)
            assert torch.equal(out, want[i])


def what_cannot_be_spread(folder: Path) -> None:
    world, across = dist.get_world_size(), mesh()

    def refused(match: str, module: Any, over: Any = across) -> None:
        with pytest.raises(at.ConfigError, match=match):
            shard_heads(module, over)

    odd = AttendreAttention(dim=30, heads=world + 1, head_dim=2, memory=8)
    refused(f"{world + 1} query heads cannot be spread over {world} processes", odd)
    assert type(odd.query.weight) is torch.nn.Parameter, "nothing is changed"
    few = AttendreAttention(dim=32, heads=8, kv_heads=1, memory=8)
    refused(f"1 K/V heads cannot be spread over {world} processes", few)
    refused("slopes of ALiBi", attention(encoding=at.ALiBi()))
    refused("contains no AttendreAttention", torch.nn.Linear(2, 2))
    flat = init_device_mesh("cpu", (1, world), mesh_dim_names=("dp", "tp"))
    refused("a DeviceMesh of 2 dimensions", attention(), flat)
    shard_heads(attention(), flat["tp"])

    part = parallelize_module(attention(), across, {"query": ColwiseParallel()})
    with pytest.raises(at.ConfigError, match="query are split.*key, value, out is whole"):
        part(chunks()[0])
    plan = {**dict.fromkeys(("query", "key", "value"), ColwiseParallel()), "out": RowwiseParallel()}
    table = parallelize_module(attention(encoding=at.T5Bias()), across, plan)
    with pytest.raises(at.ConfigError, match="table is whole"):
        table(chunks()[0])
    with at.force_generic(), pytest.raises(at.ConfigError, match="force_generic"):
        shard_heads(attention(), across)(chunks()[0])
