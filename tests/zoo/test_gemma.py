"""Gemma 3 against transformers: full attention, sliding windows, memories, generation."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.zoo.architectures.gemma import Gemma
from attendre_core.zoo.config import RawConfig

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 70,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "query_pre_attn_scalar": 13,
    "max_position_embeddings": 128,
    "sliding_window": 7,
    "attn_implementation": "eager",
}
#: Sliding and global layers, each with a rotation of its own.
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
ROTATIONS = {
    "full_attention": {"rope_type": "linear", "rope_theta": 3000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
}
CASES = {
    "mixed": {"layer_types": MIXED, "rope_parameters": ROTATIONS},
    "mqa-untied-biases": {
        "layer_types": MIXED,
        "num_key_value_heads": 1,
        "tie_word_embeddings": False,
        "attention_bias": True,
        "final_logit_softcapping": 3.0,
    },
    "every-third-global": {"sliding_window_pattern": 3, "num_key_value_heads": 6},
    "both-ways": {"layer_types": MIXED, "use_bidirectional_attention": True, "sliding_window": 9},
}
#: Rows of different lengths.
ROWS = [np.random.default_rng(0).integers(0, 97, size=n).tolist() for n in (40, 17)]


def instance(name, randomised, **changes):
    # A copy: transformers fills the dicts that it is given.
    options = json.loads(json.dumps({**SIZES, **CASES[name], **changes}))
    config = transformers.Gemma3TextConfig(**options)
    return randomised(transformers.Gemma3ForCausalLM(config))


def expected_logits(model, row):
    import torch

    with torch.no_grad():
        return model(torch.tensor([row])).logits[0].float().numpy()


def check_logits(model, theirs, difference, tolerance):
    got = model.logits(ROWS)
    for number, row in enumerate(ROWS):
        want = expected_logits(theirs, row)
        assert difference(model, got[number, : len(row)], want) < tolerance


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_logits_equal_transformers(name, library, randomised, saved, difference, tolerance):
    theirs = instance(name, randomised)
    check_logits(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


@pytest.mark.parametrize("library", ["jax"], indirect=True)
def test_logits_equal_transformers_compiled(library, randomised, saved, difference, tolerance):
    theirs = instance("mixed", randomised)
    check_logits(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


def test_hidden_states_that_look_both_ways_equal_transformers(
    randomised, saved, difference, tolerance
):
    """EmbeddingGemma is saved without its prefix, and used for its hidden states."""
    import torch

    theirs = instance("both-ways", randomised).model
    model = at.load(saved(theirs))
    got = model.encode(ROWS)
    for number, row in enumerate(ROWS):
        with torch.no_grad():
            want = theirs(torch.tensor([row])).last_hidden_state[0].numpy()
        assert difference(model, got[number, : len(row)], want) < tolerance
    memory = at.preset("LFA-0", kv_size=40, q_size=39, chunk=16)
    assert difference(model, model.with_memory(memory).encode(ROWS), got) < tolerance


@pytest.mark.thorough("jax")
@pytest.mark.parametrize(
    "memory",
    [
        at.preset("LFA-1e-3", kv_size=48, chunk=16),
        at.preset("LRA-max", kv_size=40, q_size=11, chunk=7),
    ],
    ids=["N=0", "N=11"],
)
def test_a_memory_that_holds_everything_changes_nothing(
    memory, library, randomised, saved, difference, tolerance
):
    model = at.load(saved(instance("mixed", randomised)), backend=library)
    want = np.asarray(model.backend.to_numpy(model.logits(ROWS)))
    remembering = model.with_memory(memory)
    got = remembering.logits(ROWS)
    for number, row in enumerate(ROWS):
        part = slice(0, len(row))
        assert difference(remembering, got[number, part], want[number, part]) < tolerance


@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("memory", [None, at.preset("LRA-sum", kv_size=64, chunk=16)])
@pytest.mark.parametrize("name", ["mixed", "mqa-untied-biases"])
def test_greedy_generation_equals_transformers(name, memory, library, randomised, saved):
    import torch

    theirs = instance(name, randomised)
    model = at.load(saved(theirs), memory=memory, backend=library)
    model.end = ()
    written = model.generate(ROWS, max_new_tokens=12)
    for row, mine in zip(ROWS, written, strict=True):
        want = theirs.generate(
            torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.int64),
            max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0,
        )[0, len(row) :].tolist()  # fmt: skip
        assert mine == want


def test_half_precision_rounds_as_transformers(randomised, saved, difference):
    """The factor of the embedding and the norms are rounded where transformers rounds them."""
    import torch

    exact = instance("mixed", randomised, hidden_size=54)
    folder = saved(exact)
    rounded = exact.to(torch.bfloat16)
    model = at.load(folder, backend="torch", dtype="bfloat16")
    tokens = torch.tensor([ROWS[0]])
    mine = model.architecture.embed(model.params, tokens, tokens)
    with torch.no_grad():
        assert torch.equal(mine, rounded.model.embed_tokens(tokens))
        norm = rounded.model.layers[0].input_layernorm
        want = norm(mine)
        got = model.architecture._norm(model.params["layers"][0], "attention_norm", mine)
    assert torch.equal(got, want)


def test_the_text_part_of_a_model_that_sees(randomised, saved, difference, tolerance):
    import torch

    text = {k: v for k, v in {**SIZES, **CASES["mixed"]}.items() if k != "attn_implementation"}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 16, "image_size": 28, "patch_size": 14}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=json.loads(json.dumps(text)), vision_config=vision, mm_tokens_per_image=4,
        attn_implementation="eager",
    )  # fmt: skip
    theirs = randomised(transformers.Gemma3ForConditionalGeneration(config))
    folder = saved(theirs)
    model = at.load(folder)
    with torch.no_grad():
        want = theirs(torch.tensor([ROWS[0]])).logits.numpy()
    assert difference(model, model.logits(ROWS[0]), want) < tolerance
    assert model.end == (1,)


def test_configurations_as_they_were_first_published():
    """Older files write bases, scaling and layer types differently, and leave defaults out."""
    text = {
        "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        "model_type": "gemma3_text",
    }  # fmt: skip
    found = Gemma.from_config(RawConfig({"text_config": text, "model_type": "gemma3"}, "c"))
    assert (found.heads, found.kv_heads, found.head_dim) == (8, 4, 256)
    assert found.vocabulary == 262_208
    assert [i for i in range(34) if found.window(i) is None] == [5, 11, 17, 23, 29]
    assert found.window(0) == 1024
    assert found.encoding(5) == at.RoPE(base=1e6, scaling=at.Interpolation(8.0))
    assert found.encoding(0) == at.RoPE(base=1e4)
    plain = {"rope_theta": 2e6, "rope_local_base_freq": 500.0, "sliding_window_pattern": 2}
    found = Gemma.from_config(RawConfig({**text, "rope_scaling": None, **plain}, "c"))
    assert (found.encoding(1), found.encoding(0)) == (at.RoPE(base=2e6), at.RoPE(base=500.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("query_pre_attn_scalar", 0),
        ("query_pre_attn_scalar", 10**400),
        ("sliding_window", -3),
        ("factor", -1.0),
        ("layer_types", ["full_attention"]),
    ],
)
def test_a_hostile_configuration_is_refused(name, value, randomised, saved):
    folder = saved(instance("mixed", randomised))
    config = json.loads((folder / "config.json").read_text())
    inner = config["rope_parameters"]["full_attention"] if name == "factor" else config
    inner[name] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(at.CheckpointError, match=name):
        at.load(folder)
