"""The recommended systems adapt to the model: its kind, and the length it was trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.presets import PRESETS, adapted
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.llama import Llama
from attendre_core.zoo.memories import used_memory

RECENT = "AS+visible:64"


@pytest.mark.parametrize(
    ("trained", "name"),
    [(None, "attendre-causal:64"), (1025, "attendre-causal:64"), (1024, RECENT), (64, RECENT)],
)
def test_a_short_model_keeps_what_is_recent(trained, name):
    memory = at.preset("attendre-causal:64")
    assert adapted(memory, causal=True, trained=trained).name == name


def test_a_memory_of_half_the_trained_length_keeps_what_is_recent():
    for size, name in ((1024, "AS+visible:1024"), (1023, "attendre-causal:1023")):
        memory = at.preset("attendre-causal", kv_size=size)
        assert adapted(memory, causal=True, trained=2048).name == name


def test_an_encoder_keeps_more_of_what_is_new():
    memory = at.preset("attendre:64")
    assert adapted(memory, causal=False, trained=64) == memory
    found = adapted(memory, causal=False, encoder=True)
    assert found.name == "LFA-0+softmax+quantile=1+visible+sinks=4+wait=32:64"
    assert adapted(found, causal=False, encoder=True) == found
    assert adapted(at.preset("attendre:8"), causal=False, encoder=True).sinks == 2


def test_everything_else_is_left_alone():
    fixed = [at.preset(name, kv_size=64) for name in PRESETS if not name.startswith("attendre")]
    fixed += [at.preset(f"{name}+fixed:64") for name in ("attendre", "attendre-causal")]
    fixed += [at.preset("attendre+c=-2:64"), at.preset("attendre-causal+per-token:64")]
    for memory in fixed:
        assert not memory.adapt
        for causal, encoder in ((True, False), (False, True)):
            assert adapted(memory, causal=causal, encoder=encoder, trained=64) is memory


def test_what_does_not_define_a_system_is_kept():
    memory = at.preset("attendre-causal+chunk=16+inside+in-cache:64")
    found = adapted(memory, causal=True, trained=1000)
    assert found.name == "AS+visible+chunk=16+in-cache+inside:64"
    waiting = at.preset("attendre+wait=8+pin=2-5:64")
    assert adapted(waiting, causal=False, encoder=True).pin == ((2, 5),)


def llama(context: int) -> Llama:
    prefix = load_tiny("prefix-lm").architecture
    return replace(prefix, context=context)


def test_models_say_what_they_use():
    tiny, asked = load_tiny("prefix-lm"), at.preset("attendre-causal:64")
    short, long = (
        at.Model(llama(context), tiny.params, memory="attendre-causal:64", library="numpy")
        for context in (1024, 1025)
    )
    assert short.memory == long.memory == asked
    assert short.used_memory.name == RECENT
    assert "used_memory=MemoryConfig(policy=AttentionSink" in repr(short)
    assert long.used_memory == asked
    assert "used_memory" not in repr(long)
    assert long.with_memory(513).used_memory.name == "AS+visible:513"
    assert long.with_memory(None).used_memory is None


def kept(model: at.Model) -> list[int]:
    stream = model.stream()
    stream.feed([3 + i % 70 for i in range(224)])
    state = stream._states[0].kv
    return sorted(state.position[state.valid].tolist())


def test_layers_hold_what_the_adapted_memory_keeps():
    tiny = load_tiny("prefix-lm")
    model = at.Model(llama(128), tiny.params, memory="attendre-causal+chunk=16:32", library="numpy")
    assert model.stream()._states[0].kv.position.ndim == 2  # not per head
    held = kept(model)
    assert held[:4] == [0, 1, 2, 3]
    assert held[4:] == list(range(224 - len(held[4:]), 224))
    fixed = model.with_memory("attendre-causal+fixed+chunk=16:32")
    assert fixed.stream()._states[0].kv.position.ndim == 3


def test_encoders_adapt_and_their_decoders_do_not():
    part = load_tiny("encoder-decoder").reading_part
    memory = at.preset("attendre:64")
    assert used_memory(part, memory, causal=False) == memory
    bert = Bert(
        layers=1, dim=16, heads=2, kv_heads=2, head_dim=8, vocabulary=32, context=64, hidden=32,
        positions=64,
    )  # fmt: skip
    assert used_memory(bert, memory, causal=False).policy.initial == at.QuantileScore(1.0)


def test_functions_of_jax_adapt_too():
    pytest.importorskip("jax")
    from attendre_jax import ModelFunctions

    for context, per_head in ((1024, False), (1025, True)):
        functions = ModelFunctions(llama(context), memory=at.preset("attendre-causal:64"))
        assert functions.memory == at.preset("attendre-causal:64")
        runs = functions._memory_runs(llama(context), load_tiny("prefix-lm").params, 0)
        assert {run.kind.kv_memory.per_head for run in runs} == {per_head}


def test_caches_of_transformers_adapt_too():
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from attendre_torch import AttendreCache

    for length, name in ((1024, RECENT), (1025, "attendre-causal:64")):
        config = transformers.LlamaConfig(
            vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=length,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
        cache = AttendreCache(model, "attendre-causal:64")
        assert cache.memory == at.preset("attendre-causal:64")
        assert cache.layers[0].memory.name == name


@pytest.mark.parametrize("encoder", [False, True])
def test_scores_do_not_outgrow_what_queries_gave(encoder):
    """A start above the stored scores must not widen their spread with every chunk."""
    chunk, steps = 16, 300
    memory = adapted(at.preset("attendre:64"), causal=False, encoder=encoder).kv_memory()
    state = memory.init(batch=1, heads=1, head_dim=4, chunk=chunk)
    rng = np.random.default_rng(0)
    for step in range(steps):
        key, value, query = rng.standard_normal((3, 1, chunk, 1, 4), dtype=np.float32)
        position = np.arange(step * chunk, (step + 1) * chunk, dtype=np.int32)[None]
        state, _ = memory.insert(state, key, value, position=position)
        state, _ = memory.attend(state, query, position=position)
    # A query hands out a weight of 1 per head.
    assert np.ptp(state.score[state.valid]) < chunk * steps
