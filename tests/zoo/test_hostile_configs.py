"""Whatever stands in a configuration of any architecture: a model, or an error that names it."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attendre_core.zoo.architectures import ARCHITECTURES

pytest.importorskip("safetensors")
pytestmark = pytest.mark.usefixtures("little_memory")

WIDE = {
    "vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "bert": {**WIDE, "type_vocab_size": 2},
    "cohere": {**WIDE, "num_key_value_heads": 2, "use_qk_norm": True},
    "deberta-v2": {
        **WIDE, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["c2p", "p2c"],
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "position_biased_input": False,
    },
    "distilbert": {
        "vocab_size": 30, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4,
        "max_position_embeddings": 64,
    },
    "electra": {**WIDE, "embedding_size": 8},
    "eurobert": {**WIDE, "num_key_value_heads": 2},
    "falcon": {**WIDE, "num_kv_heads": 1},
    "gemma3_text": {**WIDE, "num_key_value_heads": 1, "head_dim": 4, "sliding_window": 4},
    "llama": {**WIDE, "num_key_value_heads": 2, "rope_theta": 1e4, "sliding_window": 5},
    "marian": {
        "vocab_size": 30, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 8,
        "decoder_ffn_dim": 8, "max_position_embeddings": 64, "pad_token_id": 29,
        "decoder_start_token_id": 29,
    },
    "mistral": {**WIDE, "num_key_value_heads": 2, "sliding_window": 5},
    "modernbert": {**WIDE, "global_attn_every_n_layers": 2, "local_attention": 8},
    "mpnet": WIDE,
    "nomic_bert": {
        "vocab_size": 30, "n_embd": 16, "n_inner": 24, "n_layer": 2, "n_head": 4,
        "n_positions": 64, "activation_function": "swiglu", "rotary_emb_base": 1000,
    },
    "qwen2": {**WIDE, "num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 3},
    "qwen3": {**WIDE, "num_key_value_heads": 2, "head_dim": 6},
    "roberta": {**WIDE, "pad_token_id": 1, "architectures": ["RobertaForTokenClassification"]},
    "t5": {
        "vocab_size": 30, "d_model": 16, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2,
        "decoder_start_token_id": 0,
    },
}  # fmt: skip
#: More names that some architecture reads.
NAMES = (
    "activation", "activation_function", "alibi", "architectures", "attention_bias",
    "attention_head_size", "bias", "classifier_pooling", "conv_kernel_size", "d_ff", "d_kv",
    "decoder_vocab_size", "eos_token_id", "feed_forward_proj", "final_logit_softcapping",
    "global_rope_theta", "hidden_act", "hidden_activation", "id2label", "is_decoder",
    "layer_norm_eps", "layer_norm_epsilon", "layer_types", "local_rope_theta", "logit_scale",
    "max_relative_positions", "max_window_layers", "mlp_bias", "model_type", "multi_query",
    "new_decoder_architecture", "norm_bias", "norm_eps", "norm_rel_ebd", "num_decoder_layers",
    "num_labels", "num_ln_in_parallel_attn", "pad_token_id", "parallel_attn", "pos_att_type",
    "position_buckets", "position_embedding_type", "prenorm", "query_pre_attn_scalar",
    "relative_attention_max_distance", "relative_attention_num_buckets", "rms_norm_eps",
    "rope_local_base_freq", "rope_parameters", "rope_scaling", "rope_theta", "scale_embedding",
    "share_encoder_decoder_embeddings", "sliding_window_pattern", "text_config",
    "tie_word_embeddings", "type_vocab_size", "use_bidirectional_attention",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 70) | st.integers() | st.floats()
    | st.sampled_from(["relu", "gelu", "llama", "linear", "full_attention", ""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["rope_type", "factor", "full_attention", "x"]), inner),
    max_leaves=5,
)  # fmt: skip


def test_every_architecture_is_here():
    # What CTranslate2 wrote has no configuration, and the others are the same classes.
    same = {"camembert", "gemma3", "mt5", "xlm-roberta"}
    assert set(ARCHITECTURES) - set(CONFIGS) == {"ctranslate2", *same}


@pytest.mark.parametrize("kind", CONFIGS)
def test_the_configurations_are_good_ones(kind, made_up, loaded_or_refused):
    assert loaded_or_refused(made_up({"model_type": kind, **CONFIGS[kind]})) is not None


@pytest.mark.parametrize("kind", CONFIGS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_configuration_is_loaded_or_refused(kind, data, made_up, loaded_or_refused, tmp_path):
    good = {"model_type": kind, **CONFIGS[kind]}
    folder = tmp_path / "made-up-0"  # the first example makes it
    folder = folder if folder.exists() else made_up(good)
    names = st.sampled_from(sorted({*CONFIGS[kind], *NAMES}))
    changes = data.draw(st.dictionaries(names, VALUES, min_size=1, max_size=3))
    (folder / "config.json").write_text(json.dumps({**good, **changes}))
    loaded_or_refused(folder)
