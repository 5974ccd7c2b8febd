"""Tiny random instances of the causal language models that the installed transformers knows."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

WIDTH, HEADS, HEAD_DIM, VOCABULARY, WINDOW = 32, 4, 8, 64, 8
RANDOM = 0.2  # Standard deviation of the weights: logits differ, and attention is not flat.


def _names(names: str) -> list[str]:
    return names.split()


def _each(value: Any, names: str) -> dict[str, Any]:
    return dict.fromkeys(_names(names), value)


# A field of any configuration with one of these names gets this value.
SMALL: dict[str, Any] = {
    **_each(
        WIDTH,
        "hidden_size d_model n_embd emb_dim embedding_dim embedding_size input_embedding_size "
        "output_embedding_size word_embed_proj_dim lru_width hidden_size_global input_size "
        "attention_hidden_size pronunciation_embed_dim shape_embed_dim out_hidden_size "
        "adapter_in_dim adapter_out_dim adapter_input_size output_channels "
        "projector_input_dim projector_output_dim vision_output_dim",
    ),
    **_each(
        2 * WIDTH,
        "intermediate_size moe_intermediate_size ffn_dim ffn_hidden_size d_ff d_inner dff dim_ff "
        "decoder_ffn_dim encoder_ffn_dim dense_intermediate_size expert_ffn_hidden_size mlp_dim "
        "intermediate_size_mlp shared_expert_intermediate_size shared_intermediate_size "
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size feed_forward_size",
    ),
    **_each(
        HEADS,
        "num_attention_heads n_head n_heads num_heads attention_heads decoder_attention_heads "
        "encoder_attention_heads num_decoder_attention_heads num_encoder_attention_heads "
        "swa_num_attention_heads conf_num_attention_heads linear_num_heads "
        "linear_num_value_heads index_n_heads",
    ),
    **_each(
        HEADS // 2,
        "num_key_value_heads num_kv_heads swa_num_key_value_heads linear_num_key_heads "
        "num_query_groups",
    ),
    **_each(
        HEAD_DIM,
        "head_dim d_head d_kv dim_head attention_head_dim attention_head_size kv_channels "
        "qk_nope_head_dim v_head_dim swa_head_dim index_head_dim linear_head_dim "
        "linear_key_head_dim linear_value_head_dim",
    ),
    **_each(HEAD_DIM // 2, "qk_rope_head_dim rotary_dim"),
    "qk_head_dim": HEAD_DIM + HEAD_DIM // 2,
    **_each(WIDTH // 2, "q_lora_rank kv_lora_rank o_lora_rank"),
    **_each(4, "num_experts n_routed_experts num_local_experts moe_num_experts"),
    **_each(2, "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k"),
    **_each(
        1,
        "n_group topk_group num_expert_group num_shared_experts n_shared_experts "
        "moe_num_shared_experts zero_expert_num first_k_dense_replace num_dense_layers",
    ),
    **_each(
        VOCABULARY,
        "vocab_size decoder_vocab_size audio_vocab_size vocab_size_per_layer_input "
        "pronunciation_vocab_size shape_vocab_size codebook_size unpadded_vocab_size "
        "encoder_hash_byte_group_vocab",
    ),
    **_each(
        WINDOW,
        "sliding_window window_size local_attention attention_window_size sliding_window_size "
        "attention_chunk_size local_attention_window_len keep_window_size index_topk "
        "local_attn_chunk_length lsh_attn_chunk_length",
    ),
    **_each(
        128,
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
        "max_source_positions context_length num_position_embeddings",
    ),
    **_each(16, "image_size patch_size"),
    **_each(1, "bos_token_id decoder_start_token_id"),
    **_each(2, "eos_token_id sep_token_id eod_token_id"),
    **_each(None, "forced_eos_token_id forced_bos_token_id"),
    "pad_token_id": 0,
    **_each(RANDOM, "initializer_range init_std initializer_factor"),
    "is_decoder": True,
    "is_encoder_decoder": False,
}
ALWAYS = ("head_dim", "pad_token_id")  # Set where the default is None, too.
DEPTH = _names(
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers depth "
    "num_decoder_layers num_encoder_layers num_blocks conf_num_hidden_layers"
)
# Lists with an entry per layer: as many layers as there are kinds, but at least two.
PER_LAYER = _names(
    "layer_types layers_block_type mlp_layer_types indexer_types attention_layers attn_layers "
    "no_rope_layers layer_rope_theta num_attention_heads_per_layer activation_sparsity_pattern"
)

# Latent attention (MLA) has a key head per query head; its ``head_dim`` is the rotated part.
LATENT = {"num_key_value_heads": HEADS, "head_dim": HEAD_DIM // 2}
SHARED = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 16, "mamba_chunk_size": 8}
ZAMBA = {
    "num_hidden_layers": 4,
    "layers_block_type": ["hybrid", "mamba"] * 2,
    "attention_hidden_size": 2 * WIDTH,
    "attention_head_dim": 2 * HEAD_DIM,
    "num_key_value_heads": HEADS,
    "initializer_range": RANDOM / 2,  # Else the rounding of its own run is above 1e-5.
}
CONVOLVED = {"layer_types": ["conv", "full_attention"]}
SECTIONS = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}
# What the rules do not cover.
ODD: dict[str, dict[str, Any]] = {
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "blt": {"num_hidden_layers": 2, "encoder_hash_byte_group_size": [2, 3]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {"sliding_attention": SECTIONS, "full_attention": SECTIONS},
    },
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": WIDTH, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "dots3_note_text": LATENT
    | {
        f"swa_{name}": value
        for name, value in (SMALL | {"num_key_value_heads": HEADS, "head_dim": 12}).items()
        if name.endswith(("_heads", "head_dim", "lora_rank"))
    },
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64},
    "gemma3n_text": SHARED | {"activation_sparsity_pattern": [0.95, 0.0] * 2},
    "gemma4_text": SHARED | {"global_head_dim": 16},
    "gemma4_unified_text": SHARED | {"global_head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": MAMBA | {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2": CONVOLVED,
    "lfm2_moe": CONVOLVED,
    "mamba2": {"num_heads": 8},
    "mllama_text_model": {"num_hidden_layers": 3, "cross_attention_layers": [1]},
    "nemotron": {"num_key_value_heads": 2},
    "nemotron_h": {
        "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 16, "n_groups": 2,
        "chunk_size": 8,
    },
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},
    "qwen4_exp_text": {
        "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 8, "indexer_budget": 8,
        "indexer_compress_ratio": 2, "hc_lowrank": 8,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 16]},
    "xlstm": {"qk_dim_factor": 1.0, "hidden_size": 64, "embedding_dim": 64},
    "xmod": {"default_language": "en_XX"},
    "zamba": ZAMBA | {"use_mamba_kernels": False},
    "zamba2": ZAMBA | {
        "use_mem_rope": True,
        "mamba_headdim": 8, "n_mamba_heads": 8, "mamba_d_state": 16, "chunk_size": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


def model_types() -> list[str]:
    """Every model type that ``AutoModelForCausalLM`` accepts."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def class_of(model_type: str) -> Any:
    """Return the model class of a model type."""
    return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type])


def tiny_config(model_type: str) -> Any:
    """Configuration of a tiny model of this type."""
    kind, wanted = CONFIG_MAPPING[model_type], class_of(model_type).config_class
    kind = wanted if wanted in kind.sub_configs.values() else kind
    return kind(**_small(kind, {}))


def _small(kind: Any, extra: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a configuration class, and of the configurations that it holds."""
    default = kind()
    fields = default.to_dict()
    small: dict[str, Any] = {
        name: value
        for name, value in SMALL.items()
        if name in fields and (fields[name] is not None or name in ALWAYS) and fields[name] != value
    }
    if "pad_token_id" not in fields and "vocab_size" in fields:
        small["pad_token_id"] = 0
    if fields.get("kv_lora_rank"):
        small |= {name: value for name, value in LATENT.items() if name in fields}
    special = (n for n in fields if n.endswith(("_token_id", "_token_index")) and n not in SMALL)
    small |= {name: 3 for name in special if fields[name]}

    lists = {name: fields[name] for name in PER_LAYER if isinstance(fields.get(name), list)}
    kinds = {name: list({str(v): v for v in values}.values()) for name, values in lists.items()}
    layers = max([2, *map(len, kinds.values())])
    small |= {name: [k[i % len(k)] for i in range(layers)] for name, k in kinds.items()}
    small |= {name: layers for name in DEPTH if isinstance(fields.get(name), int)}

    small |= ODD.get(kind.model_type, {}) | extra
    for name in kind.sub_configs:
        part = getattr(default, name, None)
        if part is not None or name in small:
            inner = kind.sub_configs[name] if part is None else type(part)
            model_type = {"model_type": inner.model_type} if inner.model_type else {}
            small[name] = _small(inner, small.get(name, {})) | model_type
    return small


def tiny_model(model_type: str) -> Any:
    """Tiny random instance in float32, in evaluation mode; the same weights at every call."""
    if model_type.endswith("_assistant"):
        raise ValueError("it drafts for another model, from the keys and values of that one")
    config = tiny_config(model_type)
    torch.manual_seed(0)
    return class_of(model_type)._from_config(config, dtype=torch.float32).eval()


def tokens(model: Any, length: int, seed: int = 0) -> torch.Tensor:
    """Random prompt that no special token is part of; a row per codebook where there are some."""
    rows = getattr(model, "num_codebooks", 1) if model.config.model_type != "moshi" else 1
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(16, VOCABULARY, (rows, length), generator=generator)
