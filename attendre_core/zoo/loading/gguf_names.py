"""What GGUF calls the architectures and tensors of a model, and what everybody else calls them.

GGUF has no name for Marian and for the Transformers of CTranslate2: these come as folders only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["FAMILIES", "Family", "own_name"]


@dataclass(frozen=True)
class Family:
    """How GGUF stores one architecture.

    Attributes
    ----------
    model_type
        Its name in a ``config.json``.
    names
        Public name of a tensor to its name in the file, both without ``.weight`` or ``.bias``,
        and with braces in place of the number of a layer.
    rows
        Rows that are stored in another order: those of queries and keys in pairs, or those of
        Falcon's fused matrix.
    centred
        Weights of norms are stored plus one.
    """

    model_type: str
    names: dict[str, str]
    rows: Literal["as they are", "pairs", "fused"] = "as they are"
    centred: bool = False


def _layers(public: str, own: str, parts: dict[str, str]) -> dict[str, str]:
    return {f"{public}{{}}.{theirs}": f"{own}{{}}.{ours}" for theirs, ours in parts.items()}


_TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_LAYER = {
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
_LLAMA = _TOP | _layers("model.layers.", "blk.", _LAYER)
_GEMMA = _TOP | _layers(
    "model.layers.",
    "blk.",
    {
        **_LAYER,
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
)
_FALCON = {
    "transformer.word_embeddings": "token_embd",
    "transformer.ln_f": "output_norm",
    "lm_head": "output",
    **_layers(
        "transformer.h.",
        "blk.",
        {
            "input_layernorm": "attn_norm",
            "ln_mlp": "attn_norm",
            "ln_attn": "attn_norm_2",
            "self_attention.query_key_value": "attn_qkv",
            "self_attention.dense": "attn_output",
            "mlp.dense_h_to_4h": "ffn_up",
            "mlp.dense_4h_to_h": "ffn_down",
        },
    ),
}
_BERT = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    **_layers(
        "encoder.layer.",
        "blk.",
        {
            "attention.self.query": "attn_q",
            "attention.self.key": "attn_k",
            "attention.self.value": "attn_v",
            "attention.output.dense": "attn_output",
            "attention.output.LayerNorm": "attn_output_norm",
            "intermediate.dense": "ffn_up",
            "output.dense": "ffn_down",
            "output.LayerNorm": "layer_output_norm",
        },
    ),
}
_MODERN_BERT = {
    "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm",
    "final_norm": "output_norm",
    **_layers(
        "layers.",
        "blk.",
        {
            "attn_norm": "attn_norm",
            "attn.Wqkv": "attn_qkv",
            "attn.Wo": "attn_output",
            "mlp_norm": "ffn_norm",
            "mlp.Wi": "ffn_up",
            "mlp.Wo": "ffn_down",
        },
    ),
}


def _t5_layer(last: int) -> dict[str, str]:
    """Name the tensors of a layer whose feed-forward part is number ``last`` in it."""
    return {
        "layer.0.layer_norm": "attn_norm",
        "layer.0.SelfAttention.relative_attention_bias": "attn_rel_b",
        **{f"layer.0.SelfAttention.{name}": f"attn_{name}" for name in "qkvo"},
        f"layer.{last}.layer_norm": "ffn_norm",
        f"layer.{last}.DenseReluDense.wi": "ffn_up",
        f"layer.{last}.DenseReluDense.wi_0": "ffn_gate",
        f"layer.{last}.DenseReluDense.wi_1": "ffn_up",
        f"layer.{last}.DenseReluDense.wo": "ffn_down",
    }


_T5 = {
    "shared": "token_embd",
    "lm_head": "output",
    "encoder.final_layer_norm": "enc.output_norm",
    "decoder.final_layer_norm": "dec.output_norm",
    **_layers("encoder.block.", "enc.blk.", _t5_layer(1)),
    **_layers(
        "decoder.block.",
        "dec.blk.",
        {
            **_t5_layer(2),
            "layer.1.layer_norm": "cross_attn_norm",
            **{f"layer.1.EncDecAttention.{name}": f"cross_attn_{name}" for name in "qkvo"},
        },
    ),
}

#: By ``general.architecture``. Mistral is called llama, and mT5 is called t5.
FAMILIES = {
    "bert": Family("bert", _BERT),
    "command-r": Family("cohere", _LLAMA),
    "falcon": Family("falcon", _FALCON, rows="fused"),
    "gemma-embedding": Family("gemma3_text", _GEMMA, centred=True),
    "gemma3": Family("gemma3_text", _GEMMA, centred=True),
    "llama": Family("llama", _LLAMA, rows="pairs"),
    "modern-bert": Family("modernbert", _MODERN_BERT),
    "qwen2": Family("qwen2", _LLAMA),
    "qwen3": Family("qwen3", _LLAMA),
    "t5": Family("t5", _T5),
}


def own_name(architecture: str, public: str) -> str | None:
    """Return the name that a tensor has in a file; None if it has none.

    Examples
    --------
    >>> own_name("llama", "model.layers.3.self_attn.q_proj.weight")
    'blk.3.attn_q.weight'
    >>> own_name("t5", "decoder.block.0.layer.1.EncDecAttention.k.weight")
    'dec.blk.0.cross_attn_k.weight'
    """
    stem, _, ending = public.rpartition(".")
    number = re.search(r"(?<=\.)[0-9]{1,9}(?=\.)", stem)
    if number is not None:
        stem = f"{stem[: number.start()]}{{}}{stem[number.end() :]}"
    found = FAMILIES[architecture].names.get(stem)
    if found is None:
        return None
    return f"{found if number is None else found.format(number[0])}.{ending}"
