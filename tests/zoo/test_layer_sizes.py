"""Memories of a size of their own in each layer: pyramids and given sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves
from attendre_core.zoo.memories import shape_of

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 256, "attn_implementation": "eager",
}  # fmt: skip
TEXT = np.random.default_rng(1).integers(1, 97, size=90).tolist()
NAME = "LRA-sum+visible+c=0+pyramid+chunk=8:20"


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def slots_of(stream: Any) -> list[int]:
    return [state.kv.key.shape[2] for state in stream._states]


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7, 30])
@pytest.mark.parametrize("name", ["LRA-sum+visible", "LFA-0+chunk=8", "H2O", "AS+wait=9+chunk=4"])
def test_a_pyramid_has_the_same_total_and_falls(name: str, layers: int) -> None:
    config = at.preset(f"{name}+pyramid:100")
    sizes = config.for_layers([None] * layers).layer_sizes
    assert sum(sizes) == 100 * layers
    assert sorted(sizes, reverse=True) == list(sizes)
    assert layers == 1 or sizes[0] > 100 > sizes[-1]
    steps = -np.diff(sizes)
    assert layers == 1 or steps.max() - steps.min() <= 2, "not linear"
    plain = replace(config, layer_sizes=())
    shape = {"layers": layers, "kv_heads": 2, "head_dim": 8}
    assert config.nbytes(**shape) == plain.nbytes(**shape)


def test_layers_with_a_window_are_left_out() -> None:
    config = at.preset(NAME).for_layers([None, 5, None, 5, None])
    assert config.layer_sizes == (39, 20, 20, 20, 1)
    assert config.kv_memory(1, 5).size == at.preset("MT+chunk=8:20").kv_memory(1, 5).size


@pytest.mark.parametrize("name", [NAME, "LFA-0+layers=9/8/4+k=6:9"])
def test_names_are_read_back(name: str) -> None:
    config = at.preset(name)
    assert at.preset(config.name) == config
    assert "pyramid" in config.name or "layers=9/8/4" in config.name


def test_k_is_at_most_the_size_of_a_layer() -> None:
    config = at.preset("LFA-0+layers=9/4+k=6:9")
    assert [config.top_k_of(i) for i in range(2)] == [6, 4]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer_sizes": (8, 0)}, "layer_sizes is 0"),
        ({"layer_sizes": [8, 8]}, "expected a number of entries for each layer"),
        ({"layer_sizes": (8, 4), "q_size": 4}, "more entries than queries wait"),
        ({"layer_sizes": (8, 4), "protect_recent": 6}, "do not fit into size 4"),
    ],
)
def test_wrong_sizes_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(at.ConfigError, match=words):
        at.MemoryConfig(at.FIFO(), 8, **change)


def test_the_number_of_layers_must_be_known() -> None:
    with pytest.raises(at.ConfigError, match=r"for_layers\(windows\) first"):
        at.preset(NAME).kv_memory(0)
    with pytest.raises(at.ConfigError, match="has 2 numbers, but the model has 3 layers"):
        at.preset("MT+layers=9/8:9").for_layers([None] * 3)


@pytest.mark.thorough("jax")
def test_a_model_holds_a_pyramid(library: str, randomised: Any, saved: Any, tmp_path: Any) -> None:
    folder = saved(randomised(llama()))
    model = at.load(folder, memory=NAME, backend=library)
    want = at.preset(NAME).for_layers([None] * 4).layer_sizes
    assert want == (39, 26, 14, 1)
    stream = model.stream()
    stream.feed(TEXT[:70])
    assert slots_of(stream) == [size + 8 for size in want]
    held = sum(
        int(np.asarray(model.backend.to_numpy(leaf)).nbytes)
        for state in stream._states for leaf in tree_leaves(tuple(state.kv))
    )  # fmt: skip
    assert held == model.memory.nbytes(**shape_of(model.reading_part, "float32"))
    stream.save(tmp_path / "stream.safetensors")
    again = model.restore(tmp_path / "stream.safetensors")
    for part in (stream, again):
        part.feed(TEXT[70:])
    for one, other in zip(tree_leaves(stream._states), tree_leaves(again._states), strict=True):
        np.testing.assert_array_equal(*map(model.backend.to_numpy, (one, other)))
    kept = [
        np.sort(np.asarray(model.backend.to_numpy(s.kv.position))).tolist() for s in stream._states
    ]
    plain = at.load(folder, memory=NAME, backend="numpy").stream()
    plain.feed(TEXT[:70])
    plain.feed(TEXT[70:])
    assert kept == [np.sort(np.asarray(s.kv.position)).tolist() for s in plain._states]
    assert len(model.generate(TEXT, max_new_tokens=3)) > 0


def test_a_given_size_is_what_a_smaller_memory_keeps(randomised: Any, saved: Any) -> None:
    """With one layer, a size of its own is that of a memory of this size."""
    folder = saved(
        randomised(transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**{**SIZES, "num_hidden_layers": 1})
        ))
    )  # fmt: skip
    given = at.load(folder, memory="LFA-0+layers=9+chunk=4:20").logits(TEXT)
    np.testing.assert_array_equal(given, at.load(folder, memory="LFA-0+chunk=4:9").logits(TEXT))


def test_the_cache_for_transformers_holds_it(randomised: Any) -> None:
    torch = pytest.importorskip("torch")
    from attendre_torch import AttendreCache

    model = randomised(llama())
    cache = AttendreCache(model, NAME)
    with torch.no_grad():
        for start in range(0, 64, 8):
            model(torch.asarray([TEXT[start : start + 8]]), past_key_values=cache)
    assert [layer.state.kv.key.shape[2] for layer in cache.layers] == [47, 34, 22, 9]
