"""The recommended systems adapt to the model: its kind, and the length it was trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.presets import PRESETS, adapted
from attendre_core.zoo.architectures.llama import Llama

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
    assert found.name == "LFA-0+softmax+c=-4+visible+sinks=4+wait=32:64"
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
    tiny = load_tiny("prefix-lm")
    short, long = (
        at.Model(llama(context), tiny.params, memory="attendre-causal:64", library="numpy")
        for context in (1024, 1025)
    )
    assert short.memory.name == RECENT
    assert "AttentionSink" in repr(short)
    assert long.memory == at.preset("attendre-causal:64")
    assert long.with_memory(513).memory.name == "AS+visible:513"
    asked = at.preset("attendre-causal:64")
    assert long.with_memory(replace(asked, kv_size=513)).memory.policy == at.AttentionSink(4)


def test_functions_of_jax_adapt_too():
    pytest.importorskip("jax")
    from attendre_jax import ModelFunctions

    for context, name in ((1024, RECENT), (1025, "attendre-causal:64")):
        memory = at.preset("attendre-causal:64")
        assert ModelFunctions(llama(context), memory=memory).memory.name == name


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
        assert AttendreCache(model, "attendre-causal:64").memory.name == name
