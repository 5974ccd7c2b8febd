"""GGUF for every architecture: files as llama.cpp's converter writes them, against folders."""

from __future__ import annotations

import json

import numpy as np
import pytest

import attendre_core as at
from attendre_core.tree import tree_leaves
from attendre_core.zoo.architectures import ARCHITECTURES
from attendre_core.zoo.loading.gguf_names import FAMILIES

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")
numpy_files = pytest.importorskip("safetensors.numpy")

SIZES = {
    "vocab_size": 97, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "max_position_embeddings": 128,
}  # fmt: skip
T5 = {
    "vocab_size": 97, "d_model": 64, "d_kv": 8, "num_heads": 4, "d_ff": 96, "num_layers": 2,
    "num_decoder_layers": 3, "decoder_start_token_id": 0, "relative_attention_num_buckets": 8,
}  # fmt: skip
TURNING = {"rope_type": "default", "rope_theta": 300.0}
#: Architecture of GGUF, class of transformers, its configuration, and metadata beside the sizes.
CASES = {
    "bert": ("bert", "BertModel", SIZES, {}),
    "cohere": (
        "command-r", "CohereForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "logit_scale": 0.7, "rope_parameters": TURNING},
        {"command-r.rope.freq_base": 300.0, "command-r.rope.scaling.type": "none"},
    ),
    "cohere-norms-biases": (
        "command-r", "CohereForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "use_qk_norm": True, "attention_bias": True},
        {"command-r.rope.freq_base": 500000.0},
    ),
    "falcon-7b": ("falcon", "FalconForCausalLM", {**SIZES, "ffn_hidden_size": 96}, {}),
    "falcon-40b": (
        "falcon", "FalconForCausalLM",
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True,
         "tie_word_embeddings": False, "ffn_hidden_size": 256}, {},
    ),
    "falcon-11b": (
        "falcon", "FalconForCausalLM",
        {**SIZES, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 256,
         "num_ln_in_parallel_attn": 1, "rope_parameters": TURNING},
        {"falcon.rope.freq_base": 300.0},
    ),
    "gemma3": (
        "gemma3", "Gemma3ForCausalLM",
        {**SIZES, "num_hidden_layers": 7, "num_key_value_heads": 2, "head_dim": 16,
         "query_pre_attn_scalar": 16, "sliding_window": 6},
        {"gemma3.rope.freq_base": 1e6},
    ),
    "gemma-embedding": (
        "gemma-embedding", "Gemma3TextModel",
        {**SIZES, "num_hidden_layers": 7, "num_key_value_heads": 2, "head_dim": 16,
         "query_pre_attn_scalar": 16, "use_bidirectional_attention": True, "sliding_window": 11},
        # Their class halves the window that it is given; files name the whole.
        {"gemma-embedding.rope.freq_base": 1e6, "gemma-embedding.attention.sliding_window": 11},
    ),
    "mistral": (
        "llama", "MistralForCausalLM",
        {**SIZES, "num_key_value_heads": 2, "sliding_window": None, "rope_parameters": TURNING},
        {"llama.rope.freq_base": 300.0},
    ),
    "modernbert": (
        "modern-bert", "ModernBertModel",
        {**SIZES, "local_attention": 10, "global_attn_every_n_layers": 2,
         "pad_token_id": 0, "hidden_activation": "silu",
         "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 3000.0},
                             "sliding_attention": TURNING}},
        {"modern-bert.rope.freq_base": 3000.0, "modern-bert.rope.freq_base_swa": 300.0,
         "modern-bert.hidden_activation": "silu", "modern-bert.rope.scaling.type": "none",
         "modern-bert.attention.sliding_window": 10,
         "modern-bert.attention.sliding_window_pattern": 2},
    ),
    "modernbert-biases": (
        "modern-bert", "ModernBertModel",
        {**SIZES, "pad_token_id": 0, "attention_bias": True, "mlp_bias": True, "norm_bias": True,
         "local_attention": 6},
        {"modern-bert.rope.freq_base": 160000.0, "modern-bert.attention.sliding_window": 6},
    ),
    "t5": ("t5", "T5ForConditionalGeneration", T5, {}),
    "t5-v1.1": (
        "t5", "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {},
    ),
    "mt5": (
        "t5", "MT5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}, {},
    ),
}  # fmt: skip
ROWS = [np.random.default_rng(0).integers(2, 97, size=n).tolist() for n in (31, 12)]


@pytest.fixture
def source(randomised, saved):
    """A folder of transformers; its configuration, tensors and metadata, to be converted."""

    def make(name):
        architecture, class_name, options, more = CASES[name]
        theirs = getattr(transformers, class_name)
        config = theirs.config_class(**json.loads(json.dumps(options)))
        model = theirs(config)
        if options.get("tie_word_embeddings") is False and class_name.endswith("Generation"):
            model.lm_head.weight = type(model.lm_head.weight)(model.lm_head.weight.detach().clone())
        folder = saved(randomised(model))
        written = json.loads((folder / "config.json").read_text())
        if architecture == "falcon":
            more = {**more, "falcon.attention.layer_norm_epsilon": config.layer_norm_epsilon}
            if not config.new_decoder_architecture:  # only the newer ones name their K/V heads
                written["num_kv_heads"] = 1
        if architecture == "t5":
            more = {**more, "t5.attention.layer_norm_rms_epsilon": config.layer_norm_epsilon}
        tensors = {
            key: array
            for key, array in numpy_files.load_file(folder / "model.safetensors").items()
            if not key.startswith("pooler.")
        }
        return folder, (architecture, written, tensors), more

    return make


@pytest.fixture
def pair(source, writing_gguf, tmp_path):
    """A folder of transformers and a GGUF file with the same weights."""

    def make(name, kind="F32"):
        folder, model, more = source(name)
        file = writing_gguf.write_model(tmp_path / "model.gguf", *model, kind, **more)
        kept = {key: writing_gguf.as_stored(array, kind) for key, array in model[2].items()}
        numpy_files.save_file(kept, folder / "model.safetensors")
        return folder, file

    return make


def outputs(model):
    found = model.encode(ROWS) if model.architecture.kind == "encoder" else model.logits(ROWS)
    return np.asarray(model.backend.to_numpy(found))


def check_equal(folder, file, library="numpy"):
    """Same parameters, same architecture but for how long an input it was trained on."""
    one, other = at.load(folder, backend=library), at.load(file, backend=library)
    for a, b in zip(tree_leaves(one.params), tree_leaves(other.params), strict=True):
        a, b = (np.asarray(one.backend.to_numpy(x)) for x in (a, b))
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= 1e-6  # one more or less than a centred weight is rounded
    want = outputs(one)
    assert np.abs(outputs(other) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("name", CASES)
def test_a_file_equals_the_folder(name, pair):
    check_equal(*pair(name))


@pytest.mark.parametrize("name", ["falcon-40b", "modernbert", "t5-v1.1"])
@pytest.mark.parametrize("kind", ["Q8_0", "BF16"])
def test_quantised_files_equal_the_folder(name, kind, pair):
    check_equal(*pair(name, kind), library="torch")


def test_a_translator_from_a_file_writes_what_the_folder_writes(pair):
    folder, file = pair("t5-v1.1")
    memory = at.preset("LFA-0", kv_size=16, chunk=8)
    want = at.load(folder, memory=memory).generate(ROWS, 6)
    assert at.load(file, memory=memory).generate(ROWS, 6) == want


def test_every_architecture_that_gguf_has_a_name_for_is_known():
    known = {family.model_type for family in FAMILIES.values()}
    # Mistral is called llama, mT5 is called t5, and gemma3 holds a gemma3_text; the last two have
    # no name at all. llama.cpp writes some of the other encoders too, which are not read here.
    called_otherwise = {"mistral", "mt5", "gemma3"}
    encoders = {
        "camembert", "deberta-v2", "distilbert", "electra", "eurobert", "mpnet", "nomic_bert",
        "roberta", "xlm-roberta",
    }  # fmt: skip
    unnamed = set(ARCHITECTURES) - known - called_otherwise - encoders
    assert unnamed == {"marian", "ctranslate2"}
    assert not {"marian", "ctranslate2"} & set(gguf.MODEL_ARCH_NAMES.values())
    assert set(FAMILIES) <= set(gguf.MODEL_ARCH_NAMES.values())


def test_what_gguf_has_no_name_for_is_said(writing_gguf, tmp_path, refused):
    file = writing_gguf.write_gguf(tmp_path / "other.gguf", "marian", {}, {"x": np.ones(3)})
    refused(file, r"'marian', expected one of bert, command-r, .*Marian and CTranslate2")


@pytest.mark.parametrize(
    "name", ["bert", "cohere", "falcon-40b", "gemma3", "modernbert", "t5-v1.1"]
)
def test_any_metadata_is_loaded_or_refused(
    name, source, writing_gguf, tmp_path, loaded_or_refused, little_memory
):
    _, model, more = source(name)
    file = tmp_path / "odd.gguf"
    for key in writing_gguf.metadata_of(*model[:2]) | more:
        for odd in (0, 2**31, 0.5, "word", [1, 2], True):
            writing_gguf.write_model(file, *model, **{**more, key: odd})
            loaded_or_refused(file)
