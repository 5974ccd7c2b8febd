"""The Llama family against transformers: full attention, memories large enough, generation."""

from __future__ import annotations

import numpy as np
import pytest

import attendre_core as at

transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 128,
    "attn_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0}
CASES = {
    "llama-mha": ("Llama", {"num_key_value_heads": 6}),
    "llama-biases": (
        "Llama",
        {"num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-mqa-tied": ("Llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama-llama3": ("Llama", {"num_key_value_heads": 3, "rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"num_key_value_heads": 2, "rope_parameters": YARN}),
    "llama-linear": ("Llama", {"num_key_value_heads": 2, "rope_parameters": LINEAR}),
    "mistral-window": ("Mistral", {"num_key_value_heads": 2, "sliding_window": 9}),
    "mistral-wide-heads": (
        "Mistral",
        {"num_key_value_heads": 3, "sliding_window": None, "head_dim": 12},
    ),
    "qwen2": ("Qwen2", {"num_key_value_heads": 2, "hidden_act": "gelu"}),
    "qwen2-window": (
        "Qwen2",
        {
            "num_key_value_heads": 2,
            "use_sliding_window": True,
            "sliding_window": 7,
            "max_window_layers": 1,
        },
    ),
    "qwen3": ("Qwen3", {"num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": True}),
}
#: Rows of different lengths.
ROWS = [np.random.default_rng(0).integers(0, 97, size=n).tolist() for n in (40, 17)]


def instance(name, randomised):
    family, options = CASES[name]
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    return randomised(getattr(transformers, f"{family}ForCausalLM")(config))


def expected_logits(model, row):
    import torch

    with torch.no_grad():
        return model(torch.tensor([row])).logits[0].numpy()


@pytest.mark.parametrize("name", CASES)
def test_logits_equal_transformers(name, library, randomised, saved, difference, tolerance):
    theirs = instance(name, randomised)
    model = at.load(saved(theirs), backend=library)
    got = model.logits(ROWS)
    for number, row in enumerate(ROWS):
        want = expected_logits(theirs, row)
        assert difference(model, got[number, : len(row)], want) < tolerance


@pytest.mark.thorough("jax")
@pytest.mark.parametrize("name", ["llama-biases", "mistral-window", "qwen3"])
@pytest.mark.parametrize(
    "memory",
    [
        at.preset("LFA-1e-3", kv_size=48, chunk=16),
        at.preset("LRA-max", kv_size=48, q_size=11, chunk=7),
        at.preset("MT", kv_size=40, q_size=39, chunk=40),
    ],
    ids=["N=0", "N=11", "N=39"],
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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("llama-mqa-tied", marks=pytest.mark.thorough("jax")),
        "mistral-window",
    ],
)
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


def test_beam_search_finds_what_transformers_finds(randomised, saved):
    import torch

    theirs = instance("llama-mha", randomised)
    model = at.load(saved(theirs))
    model.end = (5,)
    for row, mine in zip(ROWS, model.generate(ROWS, max_new_tokens=10, beams=3), strict=True):
        want = theirs.generate(
            torch.tensor([row]), attention_mask=torch.ones(1, len(row), dtype=torch.int64),
            max_new_tokens=10, do_sample=False, eos_token_id=5, pad_token_id=0, num_beams=3,
        )[0, len(row) :].tolist()  # fmt: skip
        want = want[: want.index(5)] if 5 in want else want
        assert mine == want


def test_prefix_attention_looks_both_ways(randomised, saved, difference, tolerance):
    """The prompt of a prefix LM is read in both directions, by memory and without."""
    folder = saved(instance("llama-mha", randomised))
    prefix = at.load(folder, attention="prefix")
    causal = at.load(folder)
    want = np.asarray(prefix.logits(ROWS[0]))
    assert np.abs(want - np.asarray(causal.logits(ROWS[0]))).max() > 0.1
    memory = at.preset("LFA-0", kv_size=48, q_size=47, chunk=48)
    assert difference(prefix, prefix.with_memory(memory).logits(ROWS[0]), want) < tolerance
    assert prefix.generate(ROWS, 8) == prefix.with_memory(memory).generate(ROWS, 8)
