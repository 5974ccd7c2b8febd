"""Marian against transformers: logits, memories that hold everything, generation, beams."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 53,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 36,
    "decoder_ffn_dim": 28,
    "max_position_embeddings": 64,
    "pad_token_id": 30,
    "decoder_start_token_id": 30,
    "eos_token_id": 0,
    "forced_eos_token_id": None,
    "attn_implementation": "eager",
}
SEPARATE = {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 31}
CASES = {
    "opus": {"activation_function": "swish", "scale_embedding": True},
    "two-vocabularies": {**SEPARATE, "activation_function": "relu", "scale_embedding": True},
    "odd-width": {
        "d_model": 15,
        "encoder_attention_heads": 5,
        "decoder_attention_heads": 3,
        "decoder_layers": 1,
    },
    "own-head": {**SEPARATE, "tie_word_embeddings": False, "activation_function": "gelu"},
}
#: Most instances write one token again and again; these do not.
SEEDS = {"opus": 13, "two-vocabularies": 11}
#: Rows of different lengths, and what the decoder has written to each.
ROWS = [np.random.default_rng(0).integers(0, 53, size=n).tolist() for n in (40, 17)]
WRITTEN = [[30, *np.random.default_rng(1).integers(0, 31, size=n).tolist()] for n in (9, 4)]


def instance(name, randomised):
    import torch

    config = transformers.MarianConfig(**{**SIZES, **CASES[name]})
    model = randomised(transformers.MarianMTModel(config), SEEDS.get(name, 0), spread=0.5)
    with torch.no_grad():
        for part in (model.model.encoder, model.model.decoder):
            # They are computed, not learned, and so they are not saved.
            part.embed_positions.weight.copy_(part.embed_positions.create_weight())
        model.final_logits_bias += 0.3 * torch.sin(torch.arange(model.final_logits_bias.shape[1]))
    return model


def expected_tokens(model, row, limit, **options):
    import torch

    # Their cache has as many layers as the encoder, too few for our decoders.
    settings = {"do_sample": False, "use_cache": False, "bad_words_ids": [[30]], **options}
    mask = torch.ones(1, len(row), dtype=torch.int64)
    out = model.generate(torch.tensor([row]), attention_mask=mask, max_new_tokens=limit, **settings)
    return out[0, 1:].tolist()


# JAX compiles every kind of layer, so it runs the two that differ most.
LIBRARIES = [(lib, name) for name in CASES for lib in ("numpy", "torch")]
LIBRARIES += [("jax", "opus"), ("jax", "odd-width")]


@pytest.mark.parametrize(("library", "name"), LIBRARIES)
def test_logits_equal_transformers(name, library, randomised, saved, difference, tolerance):
    import torch

    pytest.importorskip(library)
    theirs = instance(name, randomised)
    model = at.load(saved(theirs), backend=library)
    got = model.logits(ROWS, WRITTEN)
    for number, (row, written) in enumerate(zip(ROWS, WRITTEN, strict=True)):
        with torch.no_grad():
            out = theirs(torch.tensor([row]), decoder_input_ids=torch.tensor([written]))
        want = out.logits[0].numpy()
        assert difference(model, got[number, : len(written)], want) < tolerance


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_memory_that_holds_everything_changes_nothing(
    library, randomised, saved, difference, tolerance
):
    pytest.importorskip(library)
    folder = saved(instance("two-vocabularies", randomised))
    model = at.load(folder)
    memory = at.preset("LFA-1e-3", kv_size=48, q_size=39, chunk=16)
    remembering = at.load(folder, memory, library)
    assert difference(remembering, remembering.encode(ROWS), model.encode(ROWS)) < tolerance
    got, want = remembering.logits(ROWS, WRITTEN), model.logits(ROWS, WRITTEN)
    for number, written in enumerate(WRITTEN):
        part = slice(0, len(written))
        assert difference(remembering, got[number, part], want[number, part]) < tolerance
    assert remembering.generate(ROWS, 8) == model.generate(ROWS, 8)


@pytest.mark.parametrize(("library", "name"), [("numpy", "opus"), ("torch", "two-vocabularies")])
def test_greedy_generation_equals_transformers(name, library, randomised, saved):
    pytest.importorskip(library)
    theirs = instance(name, randomised)
    model = at.load(saved(theirs), backend=library)
    want = [expected_tokens(theirs, row, 12) for row in ROWS]
    want = [row[: row.index(0)] if 0 in row else row for row in want]
    assert model.generate(ROWS, max_new_tokens=12) == want
    assert len(set(want[0] + want[1])) > 3, "the instance writes too little to tell anything"


def test_beam_search_finds_what_transformers_finds(randomised, saved):
    """Also with a pad token that would be the likeliest, had it not been ruled out."""
    theirs = instance("opus", randomised)
    theirs.final_logits_bias[0, 30] = 20.0
    model = at.load(saved(theirs))
    want = [expected_tokens(theirs, row, 10, num_beams=3) for row in ROWS]
    want = [row[: row.index(0)] if 0 in row else row for row in want]
    assert model.generate(ROWS, 10, beams=3) == want
    assert want != model.generate(ROWS, 10), "this does not tell beams from the greedy choice"
    assert all(np.argmax(row[0]) == 30 for row in model.logits(ROWS))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder_attention_heads", 5, "d_model is 24 and encoder_attention_heads 5, expected"),
        ("decoder_start_token_id", 53, "decoder_start_token_id is 53, expected .* 0 to 52"),
        ("activation_function", "tangent", "activation_function is 'tangent', expected"),
        ("encoder_layers", 0, "encoder_layers is 0, expected"),
        ("decoder_ffn_dim", 29, "model.decoder.layers.0.fc1.weight has shape"),
        ("vocab_size", 54, "tensors do not fit"),
    ],
)
def test_a_wrong_configuration_is_refused(name, value, message, randomised, saved):
    folder = saved(instance("opus", randomised))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(at.CheckpointError, match=message):
        at.load(folder)
