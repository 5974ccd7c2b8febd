"""Checks of models in several processes: heads spread, parameters sharded, batches split."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from head_checks import attention, by_process, chunks, mesh, read
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import attendre_core as at
from attendre_core.tree import tree_map
from attendre_core.zoo.architectures.llama import Llama
from attendre_torch import TrainableModel, shard_heads

VOCABULARY = 32


def model(
    memory: str | None = "LRA-sum", *, q: int = 0, again: bool = False, **options: Any
) -> Any:
    sizes = {"layers": 2, "dim": 32, "heads": 4, "kv_heads": 4, "head_dim": 8, "hidden": 64}
    kinds = {"vocabulary": VOCABULARY, "context": 512, "rope": at.RoPE(), "tied": True}
    llama = Llama(**sizes, **kinds, qk_norm=True)
    draw = torch.Generator().manual_seed(0)

    def drawn(tensor: Any) -> torch.Tensor:
        return 0.2 * torch.randn(tensor.shape, generator=draw) + float("norm" in tensor.name)

    config = None
    if memory is not None:
        config = at.preset(memory, kv_size=16, chunk=8, q_size=q, sigmas=0.0)
    made = at.Model(llama, tree_map(drawn, llama.parameters()), memory=config, library="torch")
    return TrainableModel(made, checkpoint=again)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """As many rows as processes, and which tokens are real: as many in each row."""
    world = dist.get_world_size()
    draw = torch.Generator().manual_seed(3)
    mask = torch.ones(world, 48, dtype=torch.int64)
    mask[0, :5], mask[1:, -5:] = 0, 0
    return torch.randint(0, VOCABULARY, (world, 48), generator=draw), mask


def loss_of_forward(module: Any, tokens: Any, mask: Any) -> torch.Tensor:
    loss = module(tokens, mask, labels=torch.where(mask > 0, tokens, -100)).loss
    loss.backward()
    return loss.detach()


def loss_of_hidden(module: Any, tokens: Any, mask: Any) -> torch.Tensor:
    loss = module.hidden(tokens, mask).square().mean()
    loss.backward()
    return loss.detach()


def loss_of_segments(module: Any, tokens: Any, mask: Any) -> torch.Tensor:
    total = torch.zeros(())
    for segment in module.segments(tokens, mask, detach_every=2):
        loss = (segment.output * segment.valid[..., None]).square().mean()
        loss.backward()
        total = total + loss.detach()
    return total


WAYS = (loss_of_forward, loss_of_hidden, loss_of_segments)


def whole(x: torch.Tensor) -> torch.Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def compare(one: Any, spread: Any, way: Callable[..., Any], rows: slice) -> None:
    """Compare losses and gradients of all rows in one process, and of some rows in each."""
    tokens, mask = batch()
    want, found = way(one, tokens, mask), way(spread, tokens[rows], mask[rows])
    found = torch.stack(by_process(found)).mean()
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-6, msg=way.__name__)
    gradients = {name.removeprefix("module."): x.grad for name, x in spread.named_parameters()}
    for name, parameter in one.named_parameters():
        torch.testing.assert_close(
            whole(gradients[name]), parameter.grad, rtol=2e-3, atol=2e-6,
            msg=lambda text, name=name: f"{way.__name__}, {name}: {text}",
        )  # fmt: skip


def own_row() -> slice:
    return slice(dist.get_rank(), dist.get_rank() + 1)


def models_with_spread_heads(folder: Path) -> None:
    kinds: list[dict[str, Any]] = [{}, {"again": True}, {"q": 8}, {"memory": None}]
    for kind in kinds:
        for way in WAYS if not kind else WAYS[:1]:
            compare(model(**kind), shard_heads(model(**kind), mesh()), way, slice(None))


def an_optimiser_on_spread_heads(folder: Path) -> None:
    """Both kinds of parameters train; afterwards the gathered model is that of one process."""
    tokens, mask = batch()
    one, spread = model(), shard_heads(model(), mesh())
    for module in (one, spread):
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1, foreach=False)
        for _ in range(2):
            optimiser.zero_grad()
            loss_of_forward(module, tokens, mask)
            optimiser.step()
    prompt = tokens[0].tolist()
    assert spread.model().generate(prompt, max_new_tokens=6) == one.model().generate(
        prompt, max_new_tokens=6
    )


def models_that_cannot_be_spread(folder: Path) -> None:
    odd = model()
    odd._model = at.Model(
        Llama(2, 32, 3, 3, 8, VOCABULARY, 512, hidden=64, rope=at.RoPE()), {}, library="torch"
    )
    with pytest.raises(at.ConfigError, match="Llama: 3 query heads cannot be spread over"):
        shard_heads(odd, mesh())


def at_the_root(module: Any, across: Any) -> Any:
    return fully_shard(module, mesh=across)


def layer_by_layer(module: Any, across: Any) -> Any:
    for layer in module.weights.layers.children():
        fully_shard(layer, mesh=across)
    return fully_shard(module, mesh=across)


def sharded_parameters(folder: Path) -> None:
    """FSDP, each process with a row of its own."""
    for shard in (at_the_root, layer_by_layer):
        for way in WAYS:
            compare(model(), shard(model(), mesh()), way, own_row())
        prompt = batch()[0][0].tolist()
        want = model().model().generate(prompt, max_new_tokens=6)
        assert shard(model(), mesh()).model().generate(prompt, max_new_tokens=6) == want


def more_sharded_parameters(folder: Path) -> None:
    kinds: list[dict[str, Any]] = [{"again": True}, {"q": 8}, {"memory": None}]
    for shard in (at_the_root, layer_by_layer):
        for kind in kinds:
            compare(model(**kind), shard(model(**kind), mesh()), loss_of_forward, own_row())


def sharded_attention(folder: Path) -> None:
    """`step`, `flush`, `drain` and `run` gather parameters as ``forward`` does."""
    xs = chunks(3)
    whole_input = xs.transpose(0, 1).flatten(1, 2)
    for options in ({}, {"q_memory": 8, "causal": False}):
        one, spread = attention(**options), fully_shard(attention(**options), mesh=mesh())
        with torch.no_grad():
            want, states = read(one, xs)
            found, own = read(spread, xs)
            assert torch.equal(found, want)
            if options:
                assert torch.equal(spread.flush(own[-1])[0].x, one.flush(states[-1])[0].x)
                assert torch.equal(spread.drain(own[-1], 4)[0].x, one.drain(states[-1], 4)[0].x)
        for module in (one, spread):
            module.run(whole_input, chunk=8)[0].square().mean().backward()
        for want, found in zip(one.parameters(), spread.parameters(), strict=True):
            torch.testing.assert_close(found.grad.full_tensor(), want.grad, rtol=1e-4, atol=1e-6)


def mixed_precision(folder: Path) -> None:
    """Parameters are gathered in bfloat16; scores stay float32, or it is an error."""

    def policy(cast: bool) -> Any:
        return MixedPrecisionPolicy(param_dtype=torch.bfloat16, cast_forward_inputs=cast)

    def spread(cast: bool) -> Any:
        made = model()
        for layer in made.weights.layers.children():
            fully_shard(layer, mesh=mesh(), mp_policy=policy(cast))
        return fully_shard(made, mesh=mesh(), mp_policy=policy(cast))

    tokens, mask = batch()
    for way in WAYS:
        want, found = way(model(), tokens, mask), way(spread(False), tokens, mask)
        torch.testing.assert_close(found.float(), want, rtol=3e-2, atol=3e-2, msg=way.__name__)
    with pytest.raises(at.DTypeError, match="scores.*bfloat16.*cast_forward_inputs=False"):
        loss_of_forward(spread(True), tokens, mask)
    module = fully_shard(attention(), mesh=mesh(), mp_policy=policy(True))
    with pytest.raises(at.DTypeError, match="scores.*bfloat16.*cast_forward_inputs=False"):
        read(module, chunks())


def heads_and_parameters(folder: Path) -> None:
    """FSDP over one dimension of the mesh, heads over the other."""
    across = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    rows = slice(*((0, 2), (2, 4))[across.get_local_rank("dp")])
    for shard in (at_the_root, layer_by_layer):
        for way in WAYS:
            spread = shard(shard_heads(model(), across["tp"]), across["dp"])
            compare(model(), spread, way, rows)


def data_parallel(folder: Path) -> None:
    compare(model(), DistributedDataParallel(model()), loss_of_forward, own_row())


def caches_of_transformers(folder: Path) -> None:
    """A model that transformers has spread writes the same text, from the same entries."""
    import transformers
    from transformers.distributed import DistributedConfig

    from attendre_torch import AttendreCache

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=8, num_key_value_heads=4, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    one, path = transformers.LlamaForCausalLM(config).eval(), folder / "llama"
    if dist.get_rank() == 0:
        one.save_pretrained(path)
    dist.barrier()
    over = DistributedConfig(tp_size=dist.get_world_size())
    spread = transformers.LlamaForCausalLM.from_pretrained(path, distributed_config=over).eval()
    old = transformers.LlamaForCausalLM.from_pretrained(path, tp_plan="auto")
    assert AttendreCache(old, "MT:16").memories[0].head_group.size == dist.get_world_size()
    by_hand, plan = copy.deepcopy(one), {"model.layers.*.self_attn.o_proj": RowwiseParallel()}
    for name in "qkv":
        plan[f"model.layers.*.self_attn.{name}_proj"] = ColwiseParallel()
    parallelize_module(by_hand, mesh(), plan)
    tokens = torch.arange(60)[None] * 7 % VOCABULARY
    for memory in ("LRA-sum+softmax:16", "LFU+k=4:16", "H2O:16"):
        written, held = [], []
        for module in (one, by_hand, spread):
            cache = AttendreCache(module, memory)
            options = {"max_new_tokens": 12, "do_sample": False}
            written.append(module.generate(tokens, past_key_values=cache, **options).tolist())
            held.append(cache.memories[1].state.kv)
        assert written[0] == written[1] == written[2], memory
        for own in held[1:]:
            assert own.key.shape[1] == 4 // dist.get_world_size()
            if own.position.ndim == 2:
                assert torch.equal(held[0].position, own.position), memory
        file = folder / f"cache-{dist.get_rank()}.safetensors"
        cache.save(file)
        again = AttendreCache(spread, memory).restore(file)
        assert torch.equal(again.memories[1].state.kv.key, held[2].key)
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(path)
    _sharded_model_of_transformers(one, tokens)


def _sharded_model_of_transformers(one: Any, tokens: torch.Tensor) -> None:
    """FSDP around the layers of a model: the cache trains and writes the same."""
    from attendre_torch import AttendreCache

    spread = copy.deepcopy(one)
    for layer in spread.model.layers:
        fully_shard(layer, mesh=mesh())
    fully_shard(spread, mesh=mesh())
    said = []
    for module in (one, spread):
        cache = AttendreCache(module, "LRA-sum+softmax:16")
        loss = module(tokens, labels=tokens, past_key_values=cache).loss
        loss.backward()
        cache = AttendreCache(module, "LRA-sum+softmax:16")
        options = {"past_key_values": cache, "max_new_tokens": 8, "do_sample": False}
        gradient = whole(module.model.layers[0].self_attn.k_proj.weight.grad)
        said.append((module.generate(tokens, **options).tolist(), loss, gradient))
    assert said[0][0] == said[1][0]
    torch.testing.assert_close(said[1][1:], said[0][1:], rtol=1e-4, atol=1e-7)
