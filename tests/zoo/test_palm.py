"""Parallel blocks against transformers: Cohere and Falcon, prefix attention, memories."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}
#: What sets one apart: K/V heads, norms, biases, ties, widths.
CASES = {
    "cohere-mqa": ("Cohere", {"num_key_value_heads": 1, "intermediate_size": 70}),
    "cohere-gqa-qk-norm": (
        "Cohere",
        {
            "num_key_value_heads": 2,
            "intermediate_size": 50,
            "use_qk_norm": True,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "logit_scale": 0.7,
            "rope_parameters": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "cohere-wide-heads": (
        "Cohere",
        {"num_key_value_heads": 3, "intermediate_size": 50, "head_dim": 10},
    ),
    "falcon-7b": ("Falcon", {}),
    "falcon-mha-biases": (
        "Falcon",
        {"multi_query": False, "bias": True, "ffn_hidden_size": 70, "tie_word_embeddings": False},
    ),
    "falcon-40b": ("Falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon-11b": (
        "Falcon",
        {
            "new_decoder_architecture": True,
            "num_kv_heads": 3,
            "num_ln_in_parallel_attn": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
}
#: Rows of different lengths.
ROWS = [np.random.default_rng(0).integers(0, 97, size=n).tolist() for n in (40, 17)]
#: One of each family for what does not depend on the details.
PAIR = ["cohere-mqa", "falcon-7b"]


def instance(name, randomised):
    family, options = CASES[name]
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    return randomised(getattr(transformers, f"{family}ForCausalLM")(config))


def check_logits(model, theirs, difference, tolerance):
    import torch

    got = model.logits(ROWS)
    for number, row in enumerate(ROWS):
        with torch.no_grad():
            want = theirs(torch.tensor([row])).logits[0].numpy()
        assert difference(model, got[number, : len(row)], want) < tolerance


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_logits_equal_transformers(name, library, randomised, saved, difference, tolerance):
    theirs = instance(name, randomised)
    check_logits(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


@pytest.mark.parametrize("name", PAIR)
@pytest.mark.parametrize("library", ["jax"], indirect=True)
def test_logits_equal_transformers_compiled(
    name, library, randomised, saved, difference, tolerance
):
    theirs = instance(name, randomised)
    check_logits(at.load(saved(theirs), backend=library), theirs, difference, tolerance)


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("name", ["cohere-gqa-qk-norm", "falcon-40b"])
@pytest.mark.parametrize(
    "memory",
    [
        at.preset("LFA-1e-3", kv_size=48, chunk=16),
        at.preset("LRA-max", kv_size=48, q_size=11, chunk=7),
    ],
    ids=["N=0", "N=11"],
)
def test_a_memory_that_holds_everything_changes_nothing(
    name, memory, library, randomised, saved, difference, tolerance
):
    model = at.load(saved(instance(name, randomised)), backend=library)
    want = np.asarray(model.backend.to_numpy(model.logits(ROWS)))
    remembering = model.with_memory(memory)
    got = remembering.logits(ROWS)
    for number, row in enumerate(ROWS):
        part = slice(0, len(row))
        assert difference(remembering, got[number, part], want[number, part]) < tolerance


@pytest.mark.parametrize("name", [*PAIR, "falcon-40b"])
@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
@pytest.mark.parametrize("memory", [None, at.preset("LRA-sum", kv_size=64, chunk=16)])
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


def test_prefix_attention_equals_transformers_without_its_causal_mask(
    randomised, saved, difference, tolerance
):
    """A prompt read in both directions is what transformers computes with an open mask."""
    import torch

    theirs = instance("cohere-mqa", randomised)
    folder = saved(theirs)
    prefix = at.load(folder, attention="prefix")
    row, length = ROWS[0], len(ROWS[0])
    with torch.no_grad():
        everything = torch.zeros(1, 1, length, length)
        want = theirs(torch.tensor([row]), attention_mask=everything).logits.numpy()
    assert difference(prefix, prefix.logits(row), want) < tolerance
    causal = np.asarray(at.load(folder).logits(row))
    assert np.abs(causal - want).max() / np.abs(want).max() > 0.1


@pytest.mark.parametrize("library", ["numpy", "torch"], indirect=True)
def test_a_prefix_model_writes_on_from_its_memory_as_from_its_prompt(library, randomised, saved):
    """What is written looks back at a prompt that was read in both directions."""
    import torch

    theirs = instance("cohere-mqa", randomised)
    prefix = at.load(saved(theirs), attention="prefix", backend=library)
    memory = at.preset("LFA-0", kv_size=40, q_size=39, chunk=16)
    written = prefix.generate(ROWS, 8)
    assert prefix.with_memory(memory).generate(ROWS, 8) == written
    for row, mine in zip(ROWS, written, strict=True):
        tokens, prompt = list(row), len(row)
        for token in mine:
            length = len(tokens)
            place = torch.arange(length)
            seen = (place[None, :] <= place[:, None]) | (place[None, :] < prompt)
            shut = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
            with torch.no_grad():
                logits = theirs(torch.tensor([tokens]), attention_mask=shut).logits[0, -1]
            assert int(logits.argmax()) == token
            tokens.append(token)


def test_a_falcon_of_another_kind_is_refused(randomised, saved):
    folder = saved(instance("falcon-7b", randomised))
    config = json.loads((folder / "config.json").read_text())
    for change in ({"alibi": True}, {"parallel_attn": False}):
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(at.CheckpointError, match="Falcon-RW is not supported"):
            at.load(folder)


@pytest.mark.parametrize("name", ["cohere-gqa-qk-norm", "falcon-40b"])
def test_heads_that_cannot_be_grouped_are_refused(name, randomised, saved):
    folder = saved(instance(name, randomised))
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, "num_key_value_heads": 4, "num_kv_heads": 4}
    (folder / "config.json").write_text(json.dumps(changed))
    with pytest.raises(at.CheckpointError, match="6 query heads and 4 K/V heads"):
        at.load(folder)
