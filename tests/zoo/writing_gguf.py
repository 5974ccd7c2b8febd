"""Write GGUF files for tests, the way llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

_SIZES = {
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "sliding_window": "attention.sliding_window",
}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_PARTS = {
    **_PARTS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def own_name(name: str, architecture: str) -> str:
    """Return llama.cpp's name of a tensor."""
    name = name.removeprefix("model.")
    if not name.startswith("layers."):
        top = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
        return f"{top[name.rpartition('.')[0]]}.weight"
    _, layer, rest = name.split(".", 2)
    part, _, ending = rest.rpartition(".")
    return f"blk.{layer}.{(_GEMMA_PARTS if architecture == 'gemma3' else _PARTS)[part]}.{ending}"


def in_pairs(rows: Any, heads: int) -> Any:
    """Bring the rows of each head from halves into neighbouring pairs."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_gguf(
    path: Path,
    architecture: str,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, Any] | None = None,
    kind: str = "F32",
) -> Path:
    """Write metadata, with types by the values of Python, and tensors; matrices in one kind."""
    import gguf

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        if key == "general.alignment":
            writer.add_custom_alignment(value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    for name, array in (tensors or {}).items():
        own = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        plain = own.name == "F32"
        data = array.astype(np.float32) if plain else gguf.quantize(array, own)
        writer.add_tensor(name, data, raw_dtype=None if plain else own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_model(
    path: Path,
    architecture: str,
    config: dict[str, Any],
    tensors: dict[str, Any],
    kind: str = "F32",
    **more: Any,
) -> Path:
    """Write a model whose configuration and tensors have their public names."""
    metadata = {
        f"{architecture}.{own}": config[name] for name, own in _SIZES.items() if name in config
    }
    metadata[f"{architecture}.attention.layer_norm_rms_epsilon"] = config["rms_norm_eps"]
    metadata[f"{architecture}.rope.freq_base"] = config["rope_theta"]
    written = {}
    for name, array in tensors.items():
        if architecture == "llama" and ".q_proj." in name:
            array = in_pairs(array, config["num_attention_heads"])
        elif architecture == "llama" and ".k_proj." in name:
            array = in_pairs(array, config["num_key_value_heads"])
        elif architecture == "gemma3" and name.endswith("norm.weight"):
            array = array + np.float32(1)
        written[own_name(name, architecture)] = array
    return write_gguf(path, architecture, metadata | more, written, kind)
