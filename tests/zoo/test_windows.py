"""Layers with a sliding window hold their window, whatever the memory's size and policy."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import attendre_core as at
from attendre_core.cli import main
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures.gemma import Gemma
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.memories import full_attention_bytes, shape_of

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "attn_implementation": "eager",
}  # fmt: skip
WINDOW = 9
SLIDING, FAR = "sliding_attention", "full_attention"
#: Longer than the models were made for.
LONG = np.random.default_rng(1).integers(1, 97, size=150).tolist()
SHORT = LONG[20:53]
#: Names at sizes far below the window; each of them would lose most of what a layer sees.
SMALL = (
    "attendre-causal:2", "MT+chunk=5:5", "LFA-1e-3+k=3+chunk=8:4", "H2O+chunk=16:4",
    "AS+in-cache+chunk=4:6", "LRA-sum+wait=3+chunk=4+flush:6", "first-M+chunk=7:1",
)  # fmt: skip


def mistral(**changes: Any) -> Any:
    config = transformers.MistralConfig(**SIZES, sliding_window=WINDOW, **changes)
    return transformers.MistralForCausalLM(config)


def gemma(kinds: list[str], **changes: Any) -> Any:
    config = transformers.Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": len(kinds), **changes},
        sliding_window=WINDOW, layer_types=kinds,
    )  # fmt: skip
    return transformers.Gemma3ForCausalLM(config)


def modern_bert() -> Any:
    sizes = {k: v for k, v in SIZES.items() if k not in ("num_key_value_heads", "head_dim")}
    config = transformers.ModernBertConfig(
        **sizes, local_attention=2 * (WINDOW - 1), layer_types=[SLIDING] * 3, pad_token_id=0
    )
    return transformers.ModernBertModel(config)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("memory", SMALL)
@pytest.mark.parametrize("make", [mistral, lambda: gemma([SLIDING] * 3)], ids=["mistral", "gemma"])
def test_a_model_of_windows_is_exact_at_every_size(
    make, memory, library, randomised, saved, difference, tolerance
):
    if library == "jax" and memory != SMALL[0]:
        pytest.skip("one memory shows it where every memory is compiled")
    model = at.load(saved(randomised(make())), backend=library)
    rows = [LONG, SHORT]
    want, got = model.logits(rows), model.with_memory(memory).logits(rows)
    for number, row in enumerate(rows):
        part = slice(0, len(row))
        expected = np.asarray(model.backend.to_numpy(want[number, part]))
        assert difference(model, got[number, part], expected) < tolerance


@pytest.mark.parametrize("how", ["separate", "inside"])
@pytest.mark.parametrize("options", [{}, {"beams": 3}], ids=["greedy", "beams"])
def test_it_writes_what_full_attention_writes(options, how, randomised, saved):
    model = at.load(saved(randomised(mistral())))
    model.end = ()
    want = model.generate([LONG, SHORT], max_new_tokens=14, **options)
    small = model.with_memory(f"attendre-causal+chunk=8+{how}:3")
    small.end = ()
    assert small.generate([LONG, SHORT], max_new_tokens=14, **options) == want


@pytest.mark.parametrize("memory", ["attendre+wait=8+chunk=4:9", "LFA-0+wait=10+flush+k=2:11"])
def test_local_attention_is_exact_if_queries_wait_for_its_other_side(
    memory, randomised, saved, difference, tolerance
):
    model = at.load(saved(randomised(modern_bert())))
    got, want = model.with_memory(memory).encode(LONG), model.encode(LONG)
    assert difference(model, got, want) < tolerance


def test_only_layers_that_see_everything_get_the_policy(randomised, saved):
    model = at.load(saved(randomised(gemma([SLIDING, FAR, SLIDING]))))
    memory = at.preset("LRA-sum+k=4+chunk=6:8")
    layers = model.with_memory(memory).stream()._reader.stack(0).layers
    assert [layer.kv_memory.size for layer in layers] == [WINDOW - 1 + 6, 8, WINDOW - 1 + 6]
    assert [layer.kv_memory.policy for layer in layers] == [at.FIFO(), memory.policy, at.FIFO()]
    assert [layer.top_k for layer in layers] == [None, 4, None]
    named = memory.with_layer_policies({2: at.LRU()})
    layers = model.with_memory(named).stream()._reader.stack(0).layers
    assert (layers[2].kv_memory.size, layers[2].kv_memory.policy) == (8, at.LRU())
    assert layers[2].top_k == 4


@pytest.mark.parametrize("kinds", [[SLIDING, FAR, SLIDING], [SLIDING] * 2, [FAR, SLIDING]])
@pytest.mark.parametrize("name", ["", "MT+chunk=16:", "LFA-0+wait=half:", "LRA-sum+wait=5+flush:"])
@pytest.mark.parametrize("budget", [70_000, 123_456])
def test_a_budget_is_that_of_all_layers(budget, name, kinds, randomised, saved):
    model = at.load(saved(randomised(gemma(kinds))), memory=f"{name}{budget}B")
    shape = shape_of(model.reading_part, "float32")
    states = model.stream()._states
    taken = sum(leaf.nbytes for leaf in tree_leaves(states))
    assert taken == model.used_memory.nbytes(**shape) <= budget
    if FAR in kinds:
        larger = at.preset(f"{name or 'attendre-causal:'}{model.memory.kv_size + 1}")
        assert larger.nbytes(**shape) > budget


def test_a_budget_below_the_windows_says_the_least(randomised, saved):
    folder = saved(randomised(gemma([SLIDING, FAR, SLIDING])))
    with pytest.raises(at.ConfigError, match="of them for sliding windows") as caught:
        at.load(folder, memory="MT+chunk=8:2KiB")
    least = str(caught.value).split("Give at least ")[1].split(";")[0]
    assert at.load(folder, memory=f"MT+chunk=8:{least}").memory.kv_size == 1
    with pytest.raises(at.ConfigError, match="too small"):
        at.load(folder, memory=f"MT+chunk=8:{int(least[:-1]) - 1}B")


def test_full_attention_holds_windows_where_there_are_windows(randomised, saved):
    """As published: Gemma 3 of 270 million parameters, with 20,326 tokens."""
    text = {
        "hidden_size": 640, "intermediate_size": 2048, "num_hidden_layers": 18,
        "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256,
        "sliding_window": 512, "model_type": "gemma3_text",
    }  # fmt: skip
    part = Gemma.from_config(RawConfig(text, "config.json"))
    entry = 2 * 4 * 256
    held = full_attention_bytes(part, 20_326, "float32", causal=True)
    assert held == (3 * 20_326 + 15 * 512) * entry
    assert round(held / 2**20, 1) == 134.1
    assert full_attention_bytes(part, 20_326, "bfloat16", causal=True) == held // 2
    assert full_attention_bytes(part, 300, "float32", causal=True) == 18 * 300 * entry
    both = full_attention_bytes(part, 20_326, "float32", causal=False)
    assert both == (3 * 20_326 + 15 * 1023) * entry
    # What transformers holds of as many tokens, in a model of the same kinds of layers.
    import torch

    theirs = randomised(gemma([SLIDING, FAR, SLIDING]))
    cache = transformers.DynamicCache(config=theirs.config)
    with torch.no_grad():
        theirs(torch.tensor([LONG]), past_key_values=cache)
    kept = [layer.keys.shape[2] for layer in cache.layers]
    model = at.load(saved(theirs))
    mine = full_attention_bytes(model.reading_part, len(LONG), "float32", causal=True)
    # A window's own newest position is not kept there between two steps.
    assert mine == sum(n + (n < len(LONG)) for n in kept) * 2 * 4 * 2 * 8


def test_a_stream_of_cut_windows_is_refused(randomised, saved, tmp_path, monkeypatch):
    model = at.load(saved(randomised(mistral())), memory="MT+chunk=4:6")
    file = tmp_path / "old.safetensors"
    own = at.MemoryConfig.kv_memory
    with monkeypatch.context() as before:
        before.setattr(at.MemoryConfig, "kv_memory", lambda self, i=0, w=None: own(self, i))
        old = model.with_memory(at.preset("MT+chunk=4:6"))
        from attendre_core.zoo.memories import memory_stack

        memory_stack.cache_clear()
        stream = old.stream()
        stream.feed(LONG)
        stream.save(file)
        memory_stack.cache_clear()
    with pytest.raises(at.StateError, match=r"holds 6 entries in layer 0, expected 12.*again"):
        model.restore(file)
    fresh = model.stream()
    fresh.feed(LONG)
    fresh.save(file)
    assert model.restore(file).lengths == fresh.lengths


@pytest.fixture
def gemma_folder(tiny_folder, randomised, saved):
    """A Gemma with two windows, and the tokenizer of the tiny model."""
    folder = saved(randomised(gemma([SLIDING, FAR, SLIDING], vocab_size=300)))
    for file in tiny_folder.iterdir():
        if "token" in file.name:
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_run_counts_what_the_model_itself_would_hold(gemma_folder, tmp_path, capsys):
    book = tmp_path / "book.txt"
    book.write_text("Once upon a time there was a memory. " * 20)
    options = ("--memory", "MT+chunk=16:20", "--max-new-tokens", "1", "--json")
    assert main(["run", "--model", str(gemma_folder), *options, str(book)]) == 0
    told = json.loads(capsys.readouterr().out)
    length = told["tokens_read"]
    assert told["full_attention_bytes"] == (length + 2 * WINDOW) * 2 * 4 * 2 * 8
    assert told["kept_per_layer"] == 20
