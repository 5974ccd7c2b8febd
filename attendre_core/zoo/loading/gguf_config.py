"""The metadata of a GGUF file as the values that a ``config.json`` of the model would hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.positions.rope import RoPE
from attendre_core.positions.scaling import Llama3Scaling
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.gguf_header import GGUFHeader
from attendre_core.zoo.loading.gguf_names import FAMILIES

__all__ = ["configuration_of"]

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "layer_norm_eps",
    "rope.freq_base": "rope_theta",
}
#: What some families call otherwise, or have in addition.
_OWN_SIZES = {
    "command-r": {"logit_scale": "logit_scale"},
    "falcon": {
        "feed_forward_length": "ffn_hidden_size",
        "attention.head_count_kv": "num_kv_heads",
        "attention.layer_norm_epsilon": "layer_norm_epsilon",
    },
    "modern-bert": {
        "attention.layer_norm_epsilon": "norm_eps",
        "attention.sliding_window": "local_attention",
        "attention.sliding_window_pattern": "global_attn_every_n_layers",
        "hidden_activation": "hidden_activation",
        "rope.freq_base": "global_rope_theta",
        "rope.freq_base_swa": "local_rope_theta",
    },
    "t5": {
        "block_count": "num_layers",
        "decoder_block_count": "num_decoder_layers",
        "decoder_start_token_id": "decoder_start_token_id",
        "embedding_length": "d_model",
        "feed_forward_length": "d_ff",
        "attention.head_count": "num_heads",
        "attention.key_length": "d_kv",
        "attention.layer_norm_rms_epsilon": "layer_norm_epsilon",
        "attention.relative_buckets_count": "relative_attention_num_buckets",
    },
}
#: The factor, trained length and bounds of the Llama 3 family; only the factor varies.
_LLAMA3 = {
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
#: Gemma 3 of 27B parameters, which alone scales its logits by width instead of head_dim.
_LARGEST_GEMMA = 62


def configuration_of(where: str, header: GGUFHeader, rope_factors: Any) -> dict[str, Any]:
    """Return the values that a ``config.json`` of the same model would hold.

    Parameters
    ----------
    rope_factors
        The tensor by which the file divides the frequencies of rotation, (head_dim / 2,); None
        if it has none.
    """
    data, meta = header.metadata, RawConfig(header.metadata, where)
    architecture = meta.word("general.architecture")
    if architecture not in FAMILIES:
        raise CheckpointError(
            f"{where}: general.architecture is {architecture[:80]!r}, expected one of "
            f"{', '.join(sorted(FAMILIES))} (Mistral is called llama, mT5 is called t5). Load the "
            "model from a folder with safetensors instead, if it is another one: Marian and "
            "CTranslate2, for example, have no name in GGUF."
        )
    parts = meta.size("split.count", 1, least=0)
    if parts > 1:
        raise CheckpointError(
            f"{where}: is one of {parts} parts. Merge them first, with llama-gguf-split --merge."
        )
    config: dict[str, Any] = {
        public: data[f"{architecture}.{own}"]
        for own, public in (_SIZES | _OWN_SIZES.get(architecture, {})).items()
        if f"{architecture}.{own}" in data
    }
    embedding, tensors = header.tensors.get("token_embd.weight"), header.tensors
    config |= {
        "model_type": FAMILIES[architecture].model_type,
        "vocab_size": None if embedding is None else embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in tensors,
        "eos_token_id": _end_tokens(data),
    }
    _refuse_partial_heads(meta, architecture)
    if meta.has(f"{architecture}.rope.scaling.type"):
        config["rope_scaling"] = _scaling(meta, f"{architecture}.rope.scaling.")
    if rope_factors is not None:
        config["rope_scaling"] = _llama3_scaling(where, config, rope_factors)
    if architecture in _REST:
        config |= _REST[architecture](header, config, meta)
    return config


def _end_tokens(data: dict[str, Any]) -> list[Any]:
    """Return the ids that end a text or a turn."""
    keys = ("tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id")
    return list(dict.fromkeys(data[key] for key in keys if isinstance(data.get(key), int)))


def _refuse_partial_heads(meta: RawConfig, architecture: str) -> None:
    """Refuse heads of which only a part is rotated, or whose values have a width of their own."""
    dim = meta.size(f"{architecture}.embedding_length")
    plain = max(dim // meta.size(f"{architecture}.attention.head_count"), 1)
    width = meta.size(f"{architecture}.attention.key_length", plain)
    for key in ("rope.dimension_count", "attention.value_length"):
        given = meta.size(f"{architecture}.{key}", width)
        if given != width:
            raise CheckpointError(
                f"{meta.where}: {architecture}.{key} is {given}, expected {width}, the width of a "
                "head. This model cannot be loaded."
            )


def _scaling(meta: RawConfig, prefix: str) -> dict[str, Any]:
    kind = meta.word(f"{prefix}type")
    settings = {
        "rope_type": "default" if kind == "none" else kind,
        "factor": meta.values.get(f"{prefix}factor"),
        "original_max_position_embeddings": meta.values.get(f"{prefix}original_context_length"),
    }
    return {name: value for name, value in settings.items() if value is not None}


def _llama3_scaling(where: str, config: dict[str, Any], factors: Any) -> dict[str, Any]:
    """Recognise the scaling of the Llama 3 family in the factors that are stored instead."""
    factor, pairs, base = float(factors.max()), factors.size, config.get("rope_theta")
    settings = {"rope_type": "llama3", "factor": factor, **_LLAMA3}
    if isinstance(base, float) and 0 < base < math.inf and 0 < factor < math.inf:
        scaling = Llama3Scaling(factor, 8192, 1.0, 4.0)
        plain = RoPE(base).frequencies(2 * pairs)
        known = RoPE(base, scaling).frequencies(2 * pairs)
        ratios = [p / k for p, k in zip(plain, known, strict=True)]
        given = factors.reshape(-1).tolist()
        if all(abs(a - b) <= 1e-3 * b for a, b in zip(given, ratios, strict=True)):
            return settings
    raise CheckpointError(
        f"{where}: rope_freqs.weight stretches positions by a rule that is not that of Llama 3, "
        "the only one known here. Load the model from a folder with safetensors instead."
    )


def _attention_bias(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        "use_qk_norm": "blk.0.attn_q_norm.weight" in header.tensors,
    }


def _bert(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    types = header.tensors.get("token_types.weight")
    return {"type_vocab_size": None if types is None else types.shape[0]}


def _falcon(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    """Write every Falcon the way of the newer ones, which name their K/V heads."""
    return {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": 2 if "blk.0.attn_norm_2.weight" in header.tensors else 1,
        "bias": "blk.0.attn_qkv.bias" in header.tensors,
    }


def _gemma(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    """Add what GGUF leaves out because llama.cpp knows it by heart."""
    name = meta.word("general.architecture")
    scalar = config.get("head_dim")
    if meta.size(f"{name}.block_count") == _LARGEST_GEMMA:
        dim, heads = (
            meta.size(f"{name}.{key}") for key in ("embedding_length", "attention.head_count")
        )
        scalar = dim // heads
    return {
        "query_pre_attn_scalar": scalar,
        "sliding_window": meta.values.get(f"{name}.attention.sliding_window"),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": meta.values.get(f"{name}.final_logit_softcapping"),
        "use_bidirectional_attention": name == "gemma-embedding",
    }


def _modern_bert(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    return {
        "attention_bias": "blk.0.attn_qkv.bias" in header.tensors,
        "norm_bias": "output_norm.bias" in header.tensors,
    }


def _t5(header: GGUFHeader, config: dict[str, Any], meta: RawConfig) -> dict[str, Any]:
    """Tell T5 from its later versions, which have a gate."""
    gated = "enc.blk.0.ffn_gate.weight" in header.tensors
    return {"feed_forward_proj": "gated-gelu" if gated else "relu"}


#: What the tensors of a family say about its configuration.
_REST: dict[str, Callable[[GGUFHeader, dict[str, Any], RawConfig], dict[str, Any]]] = {
    "bert": _bert,
    "command-r": _attention_bias,
    "falcon": _falcon,
    "gemma-embedding": _gemma,
    "gemma3": _gemma,
    "llama": _attention_bias,
    "modern-bert": _modern_bert,
    "t5": _t5,
}
