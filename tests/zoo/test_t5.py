"""T5, T5 v1.1, FLAN-T5 and mT5 against transformers: logits, memories, generation, streams."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.writer import write_across

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 53,
    "d_model": 20,
    "d_kv": 6,
    "num_heads": 3,
    "d_ff": 28,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "decoder_start_token_id": 0,
    "attn_implementation": "eager",
}
#: Few buckets, so that short inputs reach the last one.
NARROW = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 20}
CASES = {
    "t5": ("T5", {}),
    "v1.1": ("T5", {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, **NARROW}),
    "v1.1-one-table": ("T5", {"feed_forward_proj": "gated-silu", "tie_word_embeddings": False}),
    "plain-gelu": ("T5", {"feed_forward_proj": "gelu", "num_decoder_layers": 1, **NARROW}),
    "mt5": ("MT5", {"feed_forward_proj": "gated-gelu"}),
}
#: With an output matrix of its own.
UNTIED = ("v1.1", "mt5")
#: Rows of different lengths, and what the decoder has written to each.
ROWS = [np.random.default_rng(0).integers(0, 53, size=n).tolist() for n in (40, 17)]
WRITTEN = [[0, *np.random.default_rng(1).integers(0, 53, size=n).tolist()] for n in (9, 4)]


def instance(name, randomised):
    import torch

    family, options = CASES[name]
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **options})
    model = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    if name in UNTIED:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(53, 20))
    return randomised(model, spread=0.4)


def expected_logits(model, row, written):
    import torch

    with torch.no_grad():
        out = model(torch.tensor([row]), decoder_input_ids=torch.tensor([written]))
    return out.logits[0].numpy()


def expected_tokens(model, row, limit, **options):
    import torch

    # Their cache has as many layers as the encoder, too few for our decoders.
    settings = {"do_sample": False, "eos_token_id": None, "use_cache": False, **options}
    mask = torch.ones(1, len(row), dtype=torch.int64)
    out = model.generate(torch.tensor([row]), attention_mask=mask, max_new_tokens=limit, **settings)
    return out[0, 1:].tolist()


# JAX compiles every kind of layer, so it runs the two that differ most.
LIBRARIES = [(lib, name) for name in CASES for lib in ("numpy", "torch")]
LIBRARIES += [("jax", "t5"), ("jax", "v1.1")]


@pytest.mark.parametrize(("library", "name"), LIBRARIES)
def test_logits_equal_transformers(name, library, randomised, saved, difference, tolerance):
    pytest.importorskip(library)
    theirs = instance(name, randomised)
    model = at.load(saved(theirs), backend=library)
    got = model.logits(ROWS, WRITTEN)
    for number, (row, written) in enumerate(zip(ROWS, WRITTEN, strict=True)):
        want = expected_logits(theirs, row, written)
        assert difference(model, got[number, : len(written)], want) < tolerance


MEMORIES = {
    "N=39": at.preset("LFA-1e-3", kv_size=40, q_size=39, chunk=40),
    "N=48": at.preset("MT", kv_size=64, q_size=48, chunk=16),
    "flushed": replace(at.preset("LRA-sum", kv_size=41, q_size=40, chunk=7), finish="flush"),
}


@pytest.mark.thorough("jax")
@pytest.mark.parametrize(
    ("library", "memory"),
    [(lib, memory) for memory in MEMORIES for lib in ("numpy", "torch")] + [("jax", "N=48")],
)
def test_a_memory_that_holds_everything_changes_nothing(
    library, memory, randomised, saved, difference, tolerance
):
    pytest.importorskip(library)
    folder = saved(instance("v1.1", randomised))
    model = at.load(folder)
    remembering = at.load(folder, MEMORIES[memory], library)
    assert difference(remembering, remembering.encode(ROWS), model.encode(ROWS)) < tolerance
    got, want = remembering.logits(ROWS, WRITTEN), model.logits(ROWS, WRITTEN)
    for number, written in enumerate(WRITTEN):
        part = slice(0, len(written))
        assert difference(remembering, got[number, part], want[number, part]) < tolerance
    assert remembering.generate(ROWS, 8) == model.generate(ROWS, 8)


@pytest.mark.parametrize(
    ("library", "name"), [("numpy", "t5"), ("torch", "mt5"), ("numpy", "v1.1"), ("jax", "v1.1")]
)
def test_greedy_generation_equals_transformers(name, library, randomised, saved):
    pytest.importorskip(library)
    theirs = instance(name, randomised)
    model = at.load(saved(theirs), backend=library)
    model.end = ()
    want = [expected_tokens(theirs, row, 12) for row in ROWS]
    assert model.generate(ROWS, max_new_tokens=12) == want
    assert len(set(want[0] + want[1])) > 3, "the instance writes too little to tell anything"
    model.end = (want[0][3],)
    cut = [w[: w.index(model.end[0])] if model.end[0] in w else w for w in want]
    assert model.generate(ROWS, max_new_tokens=12) == cut


@pytest.mark.parametrize("memory", [None, at.preset("LFA-0", kv_size=40, q_size=39, chunk=40)])
def test_beam_search_finds_what_transformers_finds(memory, randomised, saved):
    theirs = instance("v1.1", randomised)
    model = at.load(saved(theirs), memory=memory)
    greedy = model.generate(ROWS, 10)
    model.end = (expected_tokens(theirs, ROWS[0], 10, num_beams=3)[5],)
    want = []
    for row in ROWS:
        tokens = expected_tokens(theirs, row, 10, num_beams=3, eos_token_id=model.end[0])
        want.append(tokens[: tokens.index(model.end[0])] if model.end[0] in tokens else tokens)
    assert model.generate(ROWS, 10, beams=3) == want
    assert want != greedy, "the instance does not tell beams from the greedy choice"


def test_the_decoder_attends_to_the_outputs_that_are_held(randomised, saved, difference, tolerance):
    """With room for 8 outputs, the decoder sees the last 8 of each row."""
    memory = replace(MEMORIES["N=39"], encoder_outputs=8)
    model = at.load(saved(instance("t5", randomised)), memory=memory)
    got = model.logits(ROWS, WRITTEN)
    encoded = model.encode(ROWS)
    for number, row in enumerate(ROWS):
        last = encoded[number : number + 1, len(row) - 8 : len(row)]
        _, want = write_across(model, last, np.ones((1, 8), dtype=bool), 1)
        assert difference(model, got[number, 0], want[0]) < tolerance
    everything = model.with_memory(MEMORIES["N=39"]).logits(ROWS, WRITTEN)
    assert difference(model, got, everything) > 0.01


SMALL = replace(at.preset("LRA-max", kv_size=12, q_size=5, chunk=4), encoder_outputs=24)


def test_a_small_memory_reads_on(randomised, saved, difference):
    """More than the memories hold: all outputs come, in order, and the pieces do not matter."""
    model = at.load(saved(instance("v1.1", randomised)), memory=SMALL)
    encoded = model.encode(ROWS)
    assert encoded.shape == (2, 40, 20)
    assert np.isfinite(encoded).all()
    assert np.abs(encoded[1, 17:]).max() == 0.0
    assert difference(model, encoded, model.with_memory(None).encode(ROWS)) > 0.01
    whole = model.stream(2)
    whole.feed(ROWS)
    pieces = model.stream(2)
    for start in range(0, 40, 3):
        pieces.feed([row[start : start + 3] for row in ROWS])
    assert pieces.lengths == (40, 17)
    assert np.array_equal(pieces.next_logits(), whole.next_logits())
    assert pieces.generate(6) == whole.generate(6) == model.generate(ROWS, 6)


@pytest.mark.parametrize("other", ["numpy", "torch"])
def test_a_saved_stream_goes_on(other, randomised, saved, tmp_path, difference, tolerance):
    folder = saved(instance("t5", randomised))
    model = at.load(folder, memory=SMALL)
    stream = model.stream(2)
    stream.feed([ROWS[0][:23], ROWS[1][:10]])
    stream.save(tmp_path / "stream.safetensors")
    restored = at.load(folder, memory=SMALL, backend=other).restore(tmp_path / "stream.safetensors")
    for each in (stream, restored):
        each.feed([ROWS[0][23:], ROWS[1][10:]])
    got, want = restored.next_logits(), stream.next_logits()
    if other == "numpy":
        assert np.array_equal(got, want)
    assert difference(restored.model, got, want) < tolerance
    assert restored.generate(8) == stream.generate(8)


def test_a_table_may_lie_under_another_name(randomised, saved, difference):
    """Tied tables are stored once, under whichever name came first."""
    safetensors = pytest.importorskip("safetensors.numpy")
    folder = saved(instance("t5", randomised))
    want = at.load(folder).logits(ROWS, WRITTEN)
    tensors = safetensors.load_file(folder / "model.safetensors")
    tensors["decoder.embed_tokens.weight"] = tensors.pop("shared.weight")
    safetensors.save_file(tensors, folder / "model.safetensors")
    model = at.load(folder)
    assert np.array_equal(model.logits(ROWS, WRITTEN), want)
    assert model.params["head"] is model.params["encoder"]["embedding"]
    layers = model.params["decoder"]["layers"]
    assert layers[2]["bias_table"] is layers[0]["bias_table"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("feed_forward_proj", "gated-tangent", "feed_forward_proj is 'gated-tangent', expected"),
        ("decoder_start_token_id", 53, "decoder_start_token_id is 53, expected .* 0 to 52"),
        ("relative_attention_max_distance", 2**24, "max_distance is 16777216, expected"),
        ("relative_attention_num_buckets", 2, "num_buckets is 2, expected .* from 4"),
        ("d_model", -20, "d_model is -20, expected"),
        ("d_kv", 7, "tensors do not fit"),
        ("num_decoder_layers", 4, "decoder.block.3.layer.0.SelfAttention.q.weight is missing"),
        ("num_heads", "three", "num_heads is 'three', expected"),
    ],
)
def test_a_wrong_configuration_is_refused(name, value, message, randomised, saved):
    folder = saved(instance("t5", randomised))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, name: value}))
    with pytest.raises(at.CheckpointError, match=message):
        at.load(folder)
