"""TrainableModel: models of the zoo as modules, trained through their memories."""

import re
from pathlib import Path

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves, tree_map
from attendre_core.zoo import architectures
from attendre_core.zoo.architectures import architecture_of
from attendre_core.zoo.config import RawConfig

torch = pytest.importorskip("torch")

from attendre_torch import TrainableModel, weights  # noqa: E402

B, T, V = 2, 14, 19
LLAMA = {
    "model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": V,
    "max_position_embeddings": 64, "tie_word_embeddings": True,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_heads": 4,
    "vocab_size": V, "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": V, "max_position_embeddings": 64,
    "type_vocab_size": 2, "hidden_act": "gelu",
}  # fmt: skip
ENOUGH = at.preset("LFA-0", kv_size=32, chunk=4)
SMALL = at.preset("LFA-1e-3", kv_size=6, chunk=4, sigmas=0.0)
WAITING = at.preset("LFA-1e-3", kv_size=7, q_size=3, chunk=4, sigmas=0.0)


def model(config=LLAMA, memory=None, dtype="float32", **options):
    architecture = architecture_of(RawConfig(config, "config"))
    made, shared = torch.Generator().manual_seed(0), {}

    def filled(tensor):
        if tensor not in shared:
            noise = torch.randn(tensor.shape, generator=made, dtype=torch.float64)
            noise = 0.3 * noise if len(tensor.shape) > 1 else 1 + 0.1 * noise
            shared[tensor] = noise.to(getattr(torch, dtype))
        return shared[tensor]

    params = tree_map(filled, architecture.parameters())
    return at.Model(architecture, params, memory=memory, library="torch", dtype=dtype, **options)


def tokens(length=T, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, V, size=(B, length)))


def gradients(module, loss):
    module.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def loss_of(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


def assert_same(one, two, **tolerance):
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], two[name], msg=lambda m, n=name: f"{n}: {m}", **tolerance
        )


@pytest.mark.parametrize(
    "memory", [None, ENOUGH, SMALL, WAITING], ids=["full", "M>T", "M<T", "N>0"]
)
@pytest.mark.parametrize("checkpoint", [False, True], ids=["stored", "recomputed"])
def test_logits_are_those_of_the_model(memory, checkpoint):
    ours = model(memory=memory)
    module = TrainableModel(ours, checkpoint=checkpoint)
    torch.testing.assert_close(module(tokens()).logits, ours.logits(tokens()))


@pytest.mark.parametrize("memory", [None, SMALL, WAITING], ids=["full", "M<T", "N>0"])
@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_padding_changes_nothing(memory, side):
    """Neither logits nor loss nor gradients: each row is read as if it were alone."""
    module = TrainableModel(model(memory=memory, dtype="float64"))
    rows = [tokens()[0], tokens()[1, :9]]
    before = {"left": [3, 8], "right": [0, 0], "both": [2, 4]}[side]
    ids, mask = torch.full((2, 17), 7), torch.zeros((2, 17), dtype=torch.int64)
    for i, (row, start) in enumerate(zip(rows, before, strict=True)):
        ids[i, start : start + len(row)], mask[i, start : start + len(row)] = row, 1
    labels = torch.where(mask == 1, ids, -100)
    alone = [module(row[None], labels=row[None]) for row in rows]
    counts = [len(row) - 1 for row in rows]
    want = sum(out.loss * n for out, n in zip(alone, counts, strict=True)) / sum(counts)
    got = module(ids, mask, labels)
    for i, (row, start) in enumerate(zip(rows, before, strict=True)):
        torch.testing.assert_close(got.logits[i, start : start + len(row)], alone[i].logits[0])
    torch.testing.assert_close(got.loss, want)
    assert_same(gradients(module, got.loss), gradients(module, want))


@pytest.mark.parametrize("attention", ["causal", "prefix"])
@pytest.mark.parametrize("checkpoint", [False, True], ids=["stored", "recomputed"])
def test_gradients_are_those_of_full_attention_while_nothing_is_evicted(attention, checkpoint):
    """Through all layers and chunks, and through the queries and residual streams that wait."""
    waits = 0 if attention == "causal" else 20
    memory = at.preset("LFA-0", kv_size=32, q_size=waits, chunk=4)
    module = TrainableModel(model(dtype="float64", attention=attention), checkpoint=checkpoint)
    ids = tokens()
    want = gradients(module, loss_of(module(ids).logits, ids))
    module.memory = memory
    found = gradients(module, loss_of(module(ids).logits, ids))
    assert_same(found, want, rtol=1e-9, atol=1e-12)
    assert all(grad.any() for grad in found.values())


def test_gradients_through_evicting_memories_agree_with_differences():
    module = TrainableModel(model(dtype="float64", memory=WAITING))
    ids = tokens()
    found = gradients(module, loss_of(module(ids).logits, ids))
    weight = module.weights.tree()["layers"][0]["k"].weight
    direction = torch.randn(weight.shape, dtype=torch.float64)
    slope = (found["weights.layers.0.k.weight"] * direction).sum()
    losses = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            weight.add_(step * direction)
            losses.append(loss_of(module(ids).logits, ids))
    torch.testing.assert_close((losses[0] - losses[1]) / 2e-6, slope, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("memory", [SMALL, WAITING], ids=["N=0", "N>0"])
def test_segments_are_truncated_back_propagation(memory):
    """Backward after every segment adds up to the gradient of one pass that is cut there."""
    module = TrainableModel(model(dtype="float64", memory=memory))
    ids = tokens(21)
    target = torch.roll(ids, -1, 1)

    def total(logits, wanted, valid):
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), reduction="none"
        )
        return (each * valid.flatten()).sum()

    want = gradients(
        module, total(module(ids, detach_every=2).logits, target, torch.ones_like(ids))
    )
    module.zero_grad()
    places = []
    for part in module.segments(ids, detach_every=2):
        total(part.output, target.gather(1, part.place), part.valid).backward()
        places += part.place[0][part.valid[0]].tolist()
    assert places == list(range(21))
    assert_same({n: p.grad for n, p in module.named_parameters()}, want)
    whole = gradients(module, total(module(ids).logits, target, torch.ones_like(ids)))
    assert not torch.allclose(whole["weights.layers.0.k.weight"], want["weights.layers.0.k.weight"])


def test_segments_free_their_graph():
    """What a segment keeps for its backward pass does not grow with the number of segments."""
    module = TrainableModel(model(memory=SMALL))
    held, most = [0], []

    class Packed:
        def __init__(self, tensor):
            self.tensor, self.size = tensor, tensor.nbytes
            held[0] += self.size

        def __del__(self):
            held[0] -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Packed, lambda packed: packed.tensor):
        for part in module.segments(tokens(40), detach_every=1):
            most.append(held[0])
            part.output.square().sum().backward()
            del part
    assert len(most) == 10
    assert most[-1] <= 1.1 * most[2]


def test_an_optimiser_changes_what_the_model_writes():
    ours = model(memory=SMALL)
    module = TrainableModel(ours)
    names = [name for name, _ in module.named_parameters()]
    assert len(names) == len(set(names)) == len(list(module.parameters()))
    assert "weights.layers.1.down.weight" in names
    assert "weights.head.weight" not in names  # tied
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    ids = torch.arange(B * T).reshape(B, T) % 5
    losses = []
    for _ in range(30):
        loss = loss_of(module(ids).logits, ids)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
    trained = module.model()
    assert trained.params["embedding"].data_ptr() == ours.params["embedding"].data_ptr()
    assert not trained.logits(ids).requires_grad
    assert trained.generate(ids[0].tolist(), max_new_tokens=4) == [4, 0, 1, 2]


def test_state_dict_and_dtype_round_trip():
    module = TrainableModel(model(memory=SMALL))
    other = TrainableModel(model(memory=SMALL))
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(tokens()).logits, module(tokens()).logits)
    want = other(tokens()).logits
    other.to(torch.bfloat16)
    got = other(tokens()).logits
    assert got.dtype == torch.bfloat16
    assert other.model().dtype == "bfloat16"
    assert (got.float() - want).abs().max() < 0.1 * want.abs().max()


def test_autocast_trains_with_scores_in_single_precision():
    module = TrainableModel(model(memory=ENOUGH))
    ids = tokens()
    want = gradients(module, loss_of(module(ids).logits, ids))
    with torch.autocast("cpu", torch.bfloat16):
        logits = module(ids).logits
        loss = loss_of(logits, ids)
    assert logits.dtype == torch.bfloat16
    found = gradients(module, loss)
    for name, grad in want.items():
        cosine = torch.nn.functional.cosine_similarity(found[name].flatten(), grad.flatten(), 0)
        assert cosine > 0.99, f"{name}: {float(cosine)}"


def test_encoder_decoders_train():
    ours = model(T5)
    module = TrainableModel(ours)
    written = tokens(5, seed=1)
    got = module(tokens(), decoder_input_ids=written).logits
    torch.testing.assert_close(got, ours.logits(tokens(), written))
    want = gradients(module, loss_of(got, written))
    assert all(grad.any() for grad in want.values())
    module.memory = at.preset("LFA-0", kv_size=40, q_size=30, chunk=4)
    found = gradients(module, loss_of(module(tokens(), decoder_input_ids=written).logits, written))
    assert_same(found, want, rtol=1e-3, atol=1e-5)


def test_encoders_train_on_their_hidden_states():
    ours = model(BERT)
    module = TrainableModel(ours)
    got = module(tokens()).last_hidden_state
    torch.testing.assert_close(got, ours.encode(tokens()))
    assert torch.equal(module.hidden(tokens()), got)
    want = gradients(module, got.square().sum())
    module.memory = at.preset("LFA-0", kv_size=40, q_size=30, chunk=4)
    assert_same(
        gradients(module, module(tokens()).last_hidden_state.square().sum()),
        want,
        rtol=1e-3,
        atol=1e-3,
    )


def test_every_linear_map_of_every_architecture_becomes_a_module():
    """Adapters attach to modules: a map under a new name must be listed in `weights`."""
    folder = Path(architectures.__file__).parent
    used = {
        name
        for file in folder.glob("*.py")
        for name in re.findall(r"""\blinear\(\w+, "(\w+)\"""", file.read_text(encoding="utf-8"))
    }
    assert {"qkv", "gate", "cross_out"} <= used
    assert {name.removeprefix("cross_") for name in used} <= set(weights._MAPS)


def test_weights_keep_nesting_order_and_sharing():
    table = torch.randn(5, 2)
    shared = {"type": table, "bias_table": torch.ones(3, 4)}
    layers = [{"q_bias": torch.randn(2), "q": torch.randn(2, 2), **shared} for _ in range(2)]
    tree = {"head": table, "layers": layers}
    made = weights.Weights(tree)
    found = made.tensors()
    assert [list(part) for part in found["layers"]] == [list(part) for part in tree["layers"]]
    for one, two in zip(tree_leaves(found), tree_leaves(tree), strict=True):
        assert one.data_ptr() == two.data_ptr()
        assert one.shape == two.shape
    assert "layers.0.q.bias" in made.state_dict()
    assert made.tree()["layers"][0]["type"] is made.head.weight  # registered where it came first


def test_memory_may_be_set_by_name():
    module = TrainableModel(model())
    module.memory = "attendre-causal+chunk=4:8"
    assert module.memory == at.preset("attendre-causal+chunk=4:8")
    module.memory = None
    torch.testing.assert_close(module(tokens()).logits, model().logits(tokens()))


def test_mistakes_are_named():
    architecture = model().architecture
    with pytest.raises(at.ConfigError, match="backend='torch'"):
        TrainableModel(at.Model(architecture, {}, library="numpy"))
    module = TrainableModel(model())
    with pytest.raises(at.ConfigError, match="full attention has no chunks"):
        next(module.segments(tokens()))
    with pytest.raises(at.ConfigError, match="full attention has none"):
        module(tokens(), detach_every=2)
    with pytest.raises(at.DTypeError, match=r"expected whole numbers, \(batch, length\)"):
        module(tokens()[0])
    with pytest.raises(at.ConfigError, match="needs labels, or decoder_input_ids"):
        TrainableModel(model(T5))(tokens())
    with pytest.raises(at.ConfigError, match="has no outputs before its input"):
        next(TrainableModel(model(T5, memory=SMALL)).segments(tokens()))
