"""ModernBERT against transformers: local and global layers, with and without memories."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.architectures.modernbert import ModernBert
from attendre_core.zoo.config import RawConfig

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "local_attention": 10,
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
ROTATIONS = {
    "full_attention": {"rope_type": "default", "rope_theta": 3000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES = {
    "plain": {"rope_parameters": ROTATIONS},
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "local_attention": 7},
    "every-second-global": {"global_attn_every_n_layers": 2, "hidden_activation": "silu"},
    "all-local": {"layer_types": ["sliding_attention"] * 4, "rope_parameters": ROTATIONS},
    "one-local": {"layer_types": ["sliding_attention"], "num_hidden_layers": 1},
}
#: Rows of different lengths.
ROWS = [np.random.default_rng(0).integers(1, 97, size=n).tolist() for n in (40, 17)]
LONG = np.random.default_rng(1).integers(1, 97, size=120).tolist()
#: Everything fits: M >= length, N >= length - 1.
LARGE = {
    "drain": at.preset("LFA-0", kv_size=40, q_size=39, chunk=16),
    "flush": at.MemoryConfig(at.LRA(), kv_size=64, q_size=45, chunk=7, finish="flush"),
    # N is a multiple of the chunk, so that few shapes are compiled.
    "compiled": at.preset("LRA-max", kv_size=60, q_size=40, chunk=20),
}
#: How far a local layer looks to either side, its own position included.
WINDOW = 10 // 2 + 1


def instance(name, randomised):
    options = json.loads(json.dumps({**SIZES, **CASES[name]}))
    return randomised(transformers.ModernBertModel(transformers.ModernBertConfig(**options)))


def expected_states(theirs, row):
    import torch

    with torch.no_grad():
        return theirs(torch.tensor([row])).last_hidden_state[0].numpy()


def check_states(model, theirs, difference, tolerance):
    got = model.encode(ROWS)
    for number, row in enumerate(ROWS):
        want = expected_states(theirs, row)
        assert difference(model, got[number, : len(row)], want) < tolerance


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_hidden_states_equal_transformers(name, library, randomised, saved, difference, tolerance):
    theirs = instance(name, randomised)
    check_states(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


@pytest.mark.parametrize("library", ["jax"], indirect=True)
def test_hidden_states_equal_transformers_compiled(
    library, randomised, saved, difference, tolerance
):
    theirs = instance("plain", randomised)
    check_states(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


def test_a_model_with_a_head_loads_too(randomised, saved, difference, tolerance):
    config = transformers.ModernBertConfig(**SIZES)
    theirs = randomised(transformers.ModernBertForMaskedLM(config))
    check_states(at.load(saved(theirs)), theirs.model, difference, tolerance)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize(
    ("library", "memory"),
    [("numpy", "drain"), ("numpy", "flush"), ("torch", "drain"), ("jax", "compiled")],
    indirect=["library"],
)
def test_a_memory_that_holds_everything_changes_nothing(
    memory, library, randomised, saved, difference, tolerance
):
    model = at.load(saved(instance("plain", randomised)), backend=library)
    want = np.asarray(model.backend.to_numpy(model.encode(ROWS)))
    remembering = model.with_memory(LARGE[memory])
    assert difference(remembering, remembering.encode(ROWS), want) < tolerance


@pytest.mark.parametrize("finish", ["drain", "flush"])
@pytest.mark.parametrize("queries", [WINDOW - 1, 13, 30])
@pytest.mark.parametrize("chunk", [4, 11])
def test_local_layers_are_exact_however_long_the_input(
    chunk, queries, finish, randomised, saved, difference, tolerance
):
    """Waiting for the window's other side is enough, in memories far smaller than the input."""
    model = at.load(saved(instance("all-local", randomised)))
    size = queries + 1  # The least that a configuration accepts.
    memory = at.MemoryConfig(at.LFA(), kv_size=size, q_size=queries, chunk=chunk, finish=finish)
    want = model.encode(LONG)
    remembering = model.with_memory(memory)
    assert difference(model, remembering.encode(LONG), want) < tolerance
    sizes = [layer.kv_memory.size for layer in remembering.stream()._reader.stack(len(LONG)).layers]
    assert max(sizes) < len(LONG)


def test_a_query_that_waits_too_short_misses_the_far_side(randomised, saved, difference):
    model = at.load(saved(instance("all-local", randomised)))
    short = at.preset("MT", kv_size=90, q_size=WINDOW - 4, chunk=4)
    got, want = model.with_memory(short).encode(LONG), model.encode(LONG)
    assert difference(model, got, want) > 0.01


@pytest.mark.parametrize(("size", "queries", "chunk"), [(9, 5, 4), (7, 2, 7), (12, 0, 6)])
def test_a_local_layer_with_a_policy_sees_what_both_window_and_memory_hold(
    size, queries, chunk, randomised, saved, difference, tolerance
):
    """A memory that is named for it keeps M keys; of these a query sees those in its window."""
    model = at.load(saved(instance("one-local", randomised)))
    memory = at.preset("LFA-0", kv_size=size, q_size=queries, chunk=chunk)
    memory = memory.with_layer_policies({0: at.FIFO()})
    got = model.with_memory(memory).encode(LONG)
    part, params = model.architecture, model.params
    place = np.arange(len(LONG))
    x = part.embed(params, np.asarray([LONG]), place[None])
    query, key, value = part.project(params["layers"][0], x, place[None])
    query, key = (part.encoding(0).rotate(a[0].swapaxes(0, 1), place) for a in (query, key))
    logits = query @ key.swapaxes(1, 2) / np.sqrt(part.head_dim)
    # A query attends with the chunk that pushes it out, or after the last one.
    last = np.minimum(((place + queries) // chunk + 1) * chunk, len(LONG)) - 1
    seen = np.abs(place[:, None] - place) < WINDOW
    seen &= (place <= last[:, None]) & (place > last[:, None] - size)
    weights = np.where(seen, np.exp(logits - logits.max(axis=-1, keepdims=True)), 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    attended = (weights @ value[0].swapaxes(0, 1)).swapaxes(0, 1)[None]
    want = part.final(params, part.finish(params["layers"][0], attended, x))
    assert difference(model, got, want) < tolerance
    assert difference(model, got, model.encode(LONG)) > 0.01


def test_configurations_as_they_were_first_published():
    """Older files name bases and the distance of global layers on their own."""
    values = {
        "hidden_size": 768, "intermediate_size": 1152, "num_hidden_layers": 22,
        "num_attention_heads": 12, "vocab_size": 50368, "global_rope_theta": 160000.0,
        "local_rope_theta": 9000.0, "local_attention": 128, "global_attn_every_n_layers": 3,
        "max_position_embeddings": 8192, "model_type": "modernbert",
    }  # fmt: skip
    found = ModernBert.from_config(RawConfig(values, "config.json"))
    assert [i for i in range(22) if found.window(i) is None] == [0, 3, 6, 9, 12, 15, 18, 21]
    assert found.window(1) == 65
    assert found.encoding(0) == at.RoPE(base=160000.0)
    assert found.encoding(1) == at.RoPE(base=9000.0)
