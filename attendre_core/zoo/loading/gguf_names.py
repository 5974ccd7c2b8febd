"""What GGUF calls the sizes and tensors of a model, and what everybody else calls them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from attendre_core.errors import CheckpointError
from attendre_core.positions.rope import RoPE
from attendre_core.positions.scaling import Llama3Scaling
from attendre_core.zoo.config import RawConfig
from attendre_core.zoo.loading.gguf_header import GGUFHeader

__all__ = ["FAMILIES", "configuration_of", "public_names"]

#: ``general.architecture`` to ``model_type``.
FAMILIES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}

_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_LAYER = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
#: The factor, trained length and bounds of the Llama 3 family; only the factor varies.
_LLAMA3 = {
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
#: Gemma 3 of 27B parameters, which alone scales its logits by width instead of head_dim.
_LARGEST_GEMMA = 62


def public_names(architecture: str, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Map the names that architectures ask for to the names in the file.

    Examples
    --------
    >>> public_names("llama", {"blk.3.attn_q.weight": None})
    {'model.layers.3.self_attn.q_proj.weight': 'blk.3.attn_q.weight'}
    """
    layer = _GEMMA_LAYER if architecture == "gemma3" else _LAYER
    names = {public: own for own, public in _TOP.items() if own in tensors}
    for own in tensors:
        match = re.fullmatch(r"blk\.([0-9]{1,9})\.([a-z_]+)\.(weight|bias)", own)
        if match is not None and match[2] in layer:
            names[f"model.layers.{int(match[1])}.{layer[match[2]]}.{match[3]}"] = own
    return names


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
            f"{', '.join(sorted(FAMILIES))}. Load the model from a folder with safetensors "
            "instead, if it is another one."
        )
    parts = meta.size("split.count", 1, least=0)
    if parts > 1:
        raise CheckpointError(
            f"{where}: is one of {parts} parts. Merge them first, with llama-gguf-split --merge."
        )
    config: dict[str, Any] = {
        public: data[f"{architecture}.{own}"]
        for own, public in _SIZES.items()
        if f"{architecture}.{own}" in data
    }
    embedding = header.tensors.get("token_embd.weight")
    config |= {
        "model_type": FAMILIES[architecture],
        "vocab_size": None if embedding is None else embedding.shape[0],
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "attention_bias": architecture == "llama" and "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in header.tensors,
        "eos_token_id": _end_tokens(data),
    }
    _refuse_partial_heads(meta, architecture)
    if meta.has(f"{architecture}.rope.scaling.type"):
        config["rope_scaling"] = _scaling(meta, f"{architecture}.rope.scaling.")
    if rope_factors is not None:
        config["rope_scaling"] = _llama3_scaling(where, config, rope_factors)
    if architecture == "gemma3":
        config |= _gemma(meta, config)
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


def _gemma(meta: RawConfig, config: dict[str, Any]) -> dict[str, Any]:
    """Add what GGUF leaves out because llama.cpp knows it by heart."""
    scalar = config.get("head_dim")
    if config.get("num_hidden_layers") == _LARGEST_GEMMA:
        dim, heads = (
            meta.size(f"gemma3.{key}") for key in ("embedding_length", "attention.head_count")
        )
        scalar = dim // heads
    return {
        "query_pre_attn_scalar": scalar,
        "sliding_window": meta.values.get("gemma3.attention.sliding_window"),
        "sliding_window_pattern": 6,
        "rope_local_base_freq": 10000.0,
        "final_logit_softcapping": meta.values.get("gemma3.final_logit_softcapping"),
    }
