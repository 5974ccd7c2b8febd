"""Heads of different sizes: measured on a text, used by a model, named and refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo import head_sizes
from attendre_core.zoo.head_sizes import _shared_out

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 4096, "attn_implementation": "eager", "initializer_range": 0.4,
}  # fmt: skip
TEXT = np.random.default_rng(1).integers(1, 97, size=120).tolist()


@pytest.fixture(scope="module", params=["numpy", "torch"])
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> at.Model:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES)).save_pretrained(folder)
    return at.load(folder, memory="H2O+chunk=8:20", backend=request.param)


def test_sizes_have_the_mean_of_the_memory_and_are_used(model: at.Model) -> None:
    sizes = head_sizes(model, TEXT)
    assert len(sizes) == 3
    assert all(sum(each) == 40 and min(each) >= 11 for each in sizes)
    assert any(len(set(each)) > 1 for each in sizes), "no head differs: nothing is tested"
    sized = model.with_memory(replace(model.memory, head_sizes=sizes))
    stream = sized.stream()
    stream.feed(TEXT)
    for want, entries in zip(sizes, stream.entries(), strict=True):
        held = model.backend.to_numpy(entries.valid)[0].sum(-1).tolist()
        assert held == [n + 8 for n in want]  # the present chunk is visible
    assert f"+head_sizes={sizes}" in sized.memory.name
    full = tuple((20, 20) for _ in sizes)
    same = model.with_memory(replace(model.memory, head_sizes=full))
    np.testing.assert_array_equal(
        np.asarray(same.logits(TEXT)), np.asarray(model.with_memory(model.memory).logits(TEXT))
    )


def test_the_largest_amounts_decide() -> None:
    paid = np.asarray([[9.0, 8, 7, 6, 5, 4, 3, 2], [1.0, 0.1, 0, 0, 0, 0, 0, 0]])
    assert _shared_out(paid, 4, floor=0.0, least=1) == (7, 1)
    assert _shared_out(paid, 4, floor=1.0, least=1) == (4, 4)
    assert _shared_out(paid, 4, floor=0.0, least=3) == (5, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"head_sizes": ((8, 4),), "per_head": False}, "per_head=True"),
        ({"head_sizes": [(8, 4)]}, "sizes of all K/V heads"),
        ({"head_sizes": ((),)}, "sizes of all K/V heads"),
        ({"head_sizes": ((8, 0),)}, "at least 1"),
        ({"head_sizes": ((8, 4),), "layer_sizes": (8,)}, "Keep one of them"),
        ({"head_sizes": ((8, 4),), "q_size": 4}, "more entries than queries wait"),
        ({"head_sizes": ((8, 4),), "protect_recent": 6}, "do not fit into size 4"),
    ],
)
def test_wrong_sizes_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(at.ConfigError, match=says):
        replace(at.preset("H2O+chunk=4:8"), **{"protect_recent": 0, **change})


def test_a_model_refuses_other_numbers_of_heads_and_layers(model: at.Model) -> None:
    with pytest.raises(at.ConfigError, match="3 layers"):
        model.with_memory(replace(model.memory, head_sizes=((20, 20),))).stream()
    with pytest.raises(at.ConfigError, match="2 K/V heads"):
        model.with_memory(replace(model.memory, head_sizes=((20,),) * 3)).stream()


def test_only_heads_that_decide_on_their_own_can_differ(model: at.Model) -> None:
    with pytest.raises(at.ConfigError, match="heads decide on their own"):
        head_sizes(model.with_memory("MT:20"), TEXT)
    with pytest.raises(at.ConfigError, match="between 0 and 1"):
        head_sizes(model, TEXT, floor=2.0)
