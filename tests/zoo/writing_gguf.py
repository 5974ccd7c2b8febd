"""Write GGUF files for tests, the way llama.cpp's converter writes them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

#: Names in a ``config.json`` to keys of the gguf package.
_KEYS = {
    "num_hidden_layers": "LLM.BLOCK_COUNT",
    "num_layers": "LLM.BLOCK_COUNT",
    "num_decoder_layers": "LLM.DECODER_BLOCK_COUNT",
    "decoder_start_token_id": "LLM.DECODER_START_TOKEN_ID",
    "max_position_embeddings": "LLM.CONTEXT_LENGTH",
    "hidden_size": "LLM.EMBEDDING_LENGTH",
    "d_model": "LLM.EMBEDDING_LENGTH",
    "intermediate_size": "LLM.FEED_FORWARD_LENGTH",
    "ffn_hidden_size": "LLM.FEED_FORWARD_LENGTH",
    "d_ff": "LLM.FEED_FORWARD_LENGTH",
    "logit_scale": "LLM.LOGIT_SCALE",
    "final_logit_softcapping": "LLM.FINAL_LOGIT_SOFTCAPPING",
    "num_attention_heads": "Attention.HEAD_COUNT",
    "num_heads": "Attention.HEAD_COUNT",
    "num_key_value_heads": "Attention.HEAD_COUNT_KV",
    "num_kv_heads": "Attention.HEAD_COUNT_KV",
    "head_dim": "Attention.KEY_LENGTH",
    "d_kv": "Attention.KEY_LENGTH",
    "sliding_window": "Attention.SLIDING_WINDOW",
    "local_attention": "Attention.SLIDING_WINDOW",
    "global_attn_every_n_layers": "Attention.SLIDING_WINDOW_PATTERN",
    "relative_attention_num_buckets": "Attention.REL_BUCKETS_COUNT",
    "rms_norm_eps": "Attention.LAYERNORM_RMS_EPS",
    "layer_norm_eps": "Attention.LAYERNORM_EPS",
    "norm_eps": "Attention.LAYERNORM_EPS",
    "rope_theta": "Rope.FREQ_BASE",
}


@lru_cache
def _known_names(architecture: str) -> Any:
    import gguf

    kind = next(k for k, known in gguf.MODEL_ARCH_NAMES.items() if known == architecture)
    return gguf.get_tensor_name_map(kind, 8)


def own_name(name: str, architecture: str) -> str:
    """Return llama.cpp's name of a tensor, as the gguf package knows it."""
    known = _known_names(architecture)
    for each in (name, name.removeprefix("model."), f"model.{name}"):
        found = known.get_name(each, try_suffixes=(".weight", ".bias"))
        if found is not None:
            return str(found)
    raise AssertionError(f"gguf has no name for {name} of {architecture}")


def metadata_of(architecture: str, config: dict[str, Any]) -> dict[str, Any]:
    """Return what a converter writes about sizes."""
    import gguf

    metadata = {}
    for name, key in _KEYS.items():
        if config.get(name) is not None:
            group, _, own = key.partition(".")
            metadata[getattr(getattr(gguf.Keys, group), own).format(arch=architecture)] = config[
                name
            ]
    return metadata


def in_parts(rows: Any, heads: int, kv_heads: int) -> Any:
    """Bring Falcon's groups of queries, key and value into all queries, all keys, all values."""
    groups = rows.reshape(kv_heads, heads // kv_heads + 2, -1, *rows.shape[1:])
    parts = (groups[:, :-2], groups[:, -2:-1], groups[:, -1:])
    return np.concatenate([part.reshape(-1, *rows.shape[1:]) for part in parts])


def in_pairs(rows: Any, heads: int) -> Any:
    """Bring the rows of each head from halves into neighbouring pairs."""
    halves = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def kind_of(array: Any, kind: str) -> Any:
    """Return how a tensor is stored: only matrices of whole blocks are quantised."""
    import gguf

    wanted = gguf.GGMLQuantizationType[kind]
    block, _ = gguf.GGML_QUANT_SIZES[wanted]
    fits = array.ndim > 1 and array.shape[-1] % block == 0
    return wanted if fits else gguf.GGMLQuantizationType.F32


def as_stored(array: Any, kind: str) -> Any:
    """Return the numbers that are left of a tensor once it is stored."""
    import gguf

    own = kind_of(array, kind)
    return array if own.name == "F32" else gguf.dequantize(gguf.quantize(array, own), own)


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
        own = kind_of(array, kind)
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
    written = {}
    for name, array in tensors.items():
        if architecture == "llama" and ".q_proj." in name:
            array = in_pairs(array, config["num_attention_heads"])
        elif architecture == "llama" and ".k_proj." in name:
            array = in_pairs(array, config["num_key_value_heads"])
        elif architecture == "falcon" and ".query_key_value." in name:
            array = in_parts(array, config["num_attention_heads"], config["num_kv_heads"])
        elif architecture.startswith("gemma") and name.endswith("norm.weight"):
            array = array + np.float32(1)
        written[own_name(name, architecture)] = array
    return write_gguf(path, architecture, metadata_of(architecture, config) | more, written, kind)
