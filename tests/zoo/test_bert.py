"""BERT against transformers: full attention, memories, positions beyond the table."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 50,
    "attn_implementation": "eager",
}
CASES = {
    "plain": {},
    "one-head-relu": {"num_attention_heads": 1, "hidden_act": "relu", "type_vocab_size": 1},
    "narrow-tanh": {"num_attention_heads": 8, "hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
}
#: Rows of different lengths.
ROWS = [np.random.default_rng(0).integers(0, 97, size=n).tolist() for n in (40, 17)]
#: Everything fits: M >= length, N >= length - 1.
LARGE = {
    "drain": at.preset("LFA-0", kv_size=40, q_size=39, chunk=16),
    "flush": at.MemoryConfig(at.LRA(), kv_size=64, q_size=45, chunk=7, finish="flush"),
    # N is a multiple of the chunk, so that few shapes are compiled.
    "compiled": at.preset("LRA-max", kv_size=60, q_size=40, chunk=20),
}


def instance(name, randomised):
    config = transformers.BertConfig(**{**SIZES, **CASES[name]})
    return randomised(transformers.BertModel(config, add_pooling_layer=False))


def expected_states(theirs, row, **options):
    import torch

    with torch.no_grad():
        return theirs(torch.tensor([row]), **options).last_hidden_state[0].numpy()


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


def test_a_small_memory_does_change_something(randomised, saved, difference, tolerance):
    model = at.load(saved(instance("plain", randomised)))
    small = at.preset("LFA-0", kv_size=16, q_size=8, chunk=8)
    assert difference(model, model.with_memory(small).encode(ROWS), model.encode(ROWS)) > 0.01


def test_positions_beyond_the_table_start_again(randomised, saved, difference, tolerance):
    import torch

    theirs = instance("plain", randomised)
    model = at.load(saved(theirs))
    row = np.random.default_rng(1).integers(0, 97, size=70).tolist()
    place = (torch.arange(70) % 50)[None]
    types = torch.zeros(1, 70, dtype=torch.int64)
    want = expected_states(theirs, row, position_ids=place, token_type_ids=types)
    assert difference(model, model.encode(row)[0], want) < tolerance
    memory = at.preset("MT", kv_size=70, q_size=69, chunk=32)
    assert difference(model, model.with_memory(memory).encode(row)[0], want) < tolerance


@pytest.mark.parametrize("old", [False, True], ids=["with-prefix", "gamma-and-beta"])
def test_other_names_of_the_same_tensors(old, randomised, saved, difference, tolerance):
    """A model with a head calls its tensors bert.*; the oldest call norms gamma and beta."""
    from safetensors.numpy import load_file, save_file

    config = transformers.BertConfig(**SIZES)
    theirs = randomised(transformers.BertForMaskedLM(config))
    folder = saved(theirs)
    if old:
        tensors = load_file(folder / "model.safetensors")
        renamed = {
            name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
                "LayerNorm.bias", "LayerNorm.beta"
            ): tensor
            for name, tensor in tensors.items()
        }
        assert renamed.keys() != tensors.keys()
        save_file(renamed, folder / "model.safetensors")
    check_states(at.load(folder), theirs.bert, difference, tolerance)


def test_an_encoder_writes_nothing(randomised, saved):
    model = at.load(saved(instance("plain", randomised)))
    with pytest.raises(at.ConfigError, match="encoder has no next token"):
        model.logits(ROWS)
    with pytest.raises(at.ConfigError, match="encoder writes nothing"):
        model.with_memory(LARGE["drain"]).generate(ROWS)
    stream = model.with_memory(LARGE["drain"]).stream()
    stream.feed(ROWS[0])
    with pytest.raises(at.ConfigError, match="encoder has no next token"):
        stream.next_logits()


@pytest.mark.parametrize(
    ("name", "value"), [("is_decoder", True), ("position_embedding_type", "relative_key")]
)
def test_another_kind_of_bert_is_refused(name, value, randomised, saved):
    folder = saved(instance("plain", randomised))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(at.CheckpointError, match=name):
        at.load(folder)
