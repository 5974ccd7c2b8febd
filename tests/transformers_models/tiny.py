"""Tiny random instances of the causal language models that the installed transformers knows."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WIDTH, HEADS, HEAD_DIM, VOCABULARY, WINDOW = 32, 4, 8, 64, 8

# Any field of any configuration that has one of these names gets this value.
SMALL: dict[str, Any] = {
    **dict.fromkeys(
        "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size "
        "output_embedding_size word_embed_proj_dim lru_width hidden_size_global input_size "
        "attention_hidden_size backbone_hidden_size pronunciation_embed_dim shape_embed_dim "
        "out_hidden_size adapter_in_dim adapter_out_dim adapter_input_size output_channels "
        "projector_input_dim projector_output_dim vision_output_dim".split(),
        WIDTH,
    ),
    **dict.fromkeys(
        "intermediate_size moe_intermediate_size ffn_dim ffn_hidden_size d_ff d_inner dff dim_ff "
        "decoder_ffn_dim encoder_ffn_dim dense_intermediate_size expert_ffn_hidden_size mlp_dim "
        "intermediate_size_mlp shared_expert_intermediate_size shared_intermediate_size "
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size "
        "feed_forward_size".split(),
        2 * WIDTH,
    ),
    **dict.fromkeys(
        "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
        "swa_num_attention_heads conf_num_attention_heads linear_num_heads "
        "linear_num_value_heads index_n_heads".split(),
        HEADS,
    ),
    **dict.fromkeys(
        "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads "
        "global_num_key_value_heads num_query_groups".split(),
        2,
    ),
    **dict.fromkeys(
        "head_dim d_head d_kv dim_head attention_head_dim attention_head_size kv_channels "
        "qk_nope_head_dim v_head_dim swa_head_dim global_head_dim index_head_dim linear_head_dim "
        "linear_key_head_dim linear_value_head_dim".split(),
        HEAD_DIM,
    ),
    **dict.fromkeys("qk_rope_head_dim rotary_dim".split(), 4),
    **dict.fromkeys("q_lora_rank kv_lora_rank o_lora_rank".split(), 16),
    "qk_head_dim": HEAD_DIM + 4,
    **dict.fromkeys(
        "num_experts n_routed_experts num_local_experts moe_num_experts".split(), 4
    ),
    **dict.fromkeys(
        "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k".split(), 2
    ),
    **dict.fromkeys(
        "n_group topk_group num_expert_group num_shared_experts n_shared_experts "
        "moe_num_shared_experts zero_expert_num first_k_dense_replace num_dense_layers "
        "num_kv_shared_layers".split(),
        1,
    ),
    **dict.fromkeys(
        "vocab_size decoder_vocab_size audio_vocab_size vocab_size_per_layer_input "
        "pronunciation_vocab_size shape_vocab_size codebook_size unpadded_vocab_size "
        "encoder_hash_byte_group_vocab num_centroids".split(),
        VOCABULARY,
    ),
    **dict.fromkeys(
        "sliding_window window_size local_attention attention_window_size sliding_window_size "
        "attention_chunk_size local_attention_window_len keep_window_size "
        "local_attn_chunk_length lsh_attn_chunk_length".split(),
        WINDOW,
    ),
    **dict.fromkeys(
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
        "max_source_positions context_length num_position_embeddings".split(),
        128,
    ),
    **dict.fromkeys("image_size patch_size".split(), 16),
    **dict.fromkeys("bos_token_id decoder_start_token_id".split(), 1),
    **dict.fromkeys("eos_token_id sep_token_id eod_token_id".split(), 2),
    "pad_token_id": 0,
    "forced_eos_token_id": None,
    "index_topk": WINDOW,
    **dict.fromkeys("initializer_range init_std initializer_factor".split(), 0.2),
    "is_decoder": True,
    "is_encoder_decoder": False,
}  # fmt: skip
# Names of lists with an entry per layer: one layer of every kind is kept.
PER_LAYER = (
    "layer_types layers_block_type mlp_layer_types indexer_types attention_layers attn_layers "
    "no_rope_layers layer_rope_theta num_attention_heads_per_layer activation_sparsity_pattern"
).split()
DEPTH = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers depth "
    "num_decoder_layers num_encoder_layers num_blocks conf_num_hidden_layers attention_layers"
).split()
# Latent attention (MLA): a key head per query head; ``head_dim`` is the rotated part.
LATENT = {"num_key_value_heads": HEADS, "head_dim": 4}
GEMMA_SHARED = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 2, "hidden_size_per_layer_input": 8, "global_head_dim": 16}
MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 8}
# What the rules above do not cover.
ODD: dict[str, dict[str, Any]] = {
    "bamba": MAMBA2 | {"attn_layer_indices": [1]},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}, "sliding_attention": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}, "layer_types": ["sliding_attention", "full_attention"]},
    "blt": {"num_hidden_layers": 2, "encoder_hash_byte_group_size": [2, 3]},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_text": LATENT | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4, "swa_head_dim": 12, "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_qk_nope_head_dim": 8, "swa_qk_rope_head_dim": 4, "swa_v_head_dim": 8},
    "falcon_h1": MAMBA2 | {"mamba_d_ssm": 64},
    "gemma3n_text": {k: v for k, v in GEMMA_SHARED.items() if k != "global_head_dim"} | {"activation_sparsity_pattern": [0.95, 0.0] * 2},
    "gemma4_text": GEMMA_SHARED,
    "gemma4_unified_text": GEMMA_SHARED,
    "granitemoehybrid": MAMBA2 | {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 8},
    "mllama": {"text_config": {"num_hidden_layers": 3, "cross_attention_layers": [1]}},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8, "indexer_compress_ratio": 2, "hc_lowrank": 8},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "xlstm": {"qk_dim_factor": 1.0, "hidden_size": 64, "embedding_dim": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_hidden_size": 64, "attention_head_dim": 16, "num_key_value_heads": 4, "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_d_state": 16, "chunk_size": 8},
    "zaya": {"num_experts_per_tok": 1},
}


class CannotRun(Exception):
    """transformers itself cannot run this model here."""


def model_types() -> list[str]:
    """Every model type that ``AutoModelForCausalLM`` accepts."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(model_type: str) -> Any:
    """Configuration of a tiny model of this type: one layer of every kind, but at least two."""
    return _shrunk(CONFIG_MAPPING[model_type], ODD.get(model_type, {}))


def _shrunk(kind: type, odd: dict[str, Any]) -> Any:
    default = kind()
    fields = default.to_dict()
    inner = {name: part for name, part in default.sub_configs.items() if name in fields}
    small: dict[str, Any] = {
        name: value
        for name, value in SMALL.items()
        if name in fields and (fields[name] is not None or name == "head_dim") and name not in inner
    }
    for name in fields:
        if name.endswith(("_token_id", "_token_index")) and name not in SMALL and fields[name]:
            small[name] = 3
    lists = {name: fields[name] for name in PER_LAYER if isinstance(fields.get(name), list)}
    kinds = {name: list(dict.fromkeys(map(str, values))) for name, values in lists.items()}
    layers = max([2, *map(len, kinds.values())])
    for name, values in lists.items():
        first = list({str(v): v for v in values}.values())
        small[name] = [first[i % len(first)] for i in range(layers)]
    if "kv_lora_rank" in small:
        small |= {name: value for name, value in LATENT.items() if name in fields}
    small |= {name: layers for name in DEPTH if isinstance(fields.get(name), int)}
    for name, part in inner.items():
        part = getattr(default, name)
        if part is not None:
            small[name] = _shrunk(type(part), odd.get(name, ODD.get(part.model_type, {})))
    return kind(**(small | {k: v for k, v in odd.items() if k not in inner}))


def tiny_model(model_type: str) -> Any:
    """Tiny random instance in float32, in evaluation mode; the same one at every call."""
    config = tiny_config(model_type)
    kind = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])
    if kind.config_class in config.sub_configs.values():
        parts = (getattr(config, name) for name in config.sub_configs)
        config = next(part for part in parts if isinstance(part, kind.config_class))
    torch.manual_seed(0)
    return kind._from_config(config, dtype=torch.float32).eval()
