"""The Llama family: Llama, SmolLM2, Mistral, Qwen2, Qwen2.5, Qwen3.

::

    x ─┬─ norm ─► q, k, v ─► attention ─► out ─┬─► + ─┬─ norm ─► feed-forward ─┬─► +
       └───────────────────────────────────────┘      └────────────────────────┘
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from attendre_core.backend import Array
from attendre_core.ops import rms_norm
from attendre_core.positions.base import Encoding
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.architectures.base import Architecture, Cross, Params, Part, Tensor
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    activate,
    embedded,
    linear,
    merged_heads,
    split_heads,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["Llama"]


@dataclass(frozen=True)
class Llama(Part, Architecture):
    """A decoder with RMS norms, rotary positions and grouped K/V heads.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    gated
        Whether it has a gate; a plain one is ``down(activation(up(x)))``.
    qkv_bias, out_bias, hidden_bias
        Which linear maps have biases.
    qk_norm
        Queries and keys are normalised head by head (Qwen3).
    tied
        The embedding is also the output matrix.
    windows
        Sliding window of each layer; empty = none has one.
    """

    hidden: int
    rope: RoPE
    eps: float = 1e-6
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    hidden_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    windows: tuple[int | None, ...] = ()

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        kind = config.word("model_type")
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        layers = config.size("num_hidden_layers")
        biased = config.flag("attention_bias", False)
        return cls(
            layers=layers,
            dim=dim,
            heads=heads,
            kv_heads=config.size("num_key_value_heads", heads),
            head_dim=config.size("head_dim", max(dim // heads, 1)),
            vocabulary=config.size("vocab_size"),
            context=config.size("max_position_embeddings", 2048),
            hidden=config.size("intermediate_size"),
            rope=config.rope(),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=config.word("hidden_act", "silu", ACTIVATIONS),
            gated=config.flag("gated_mlp", True),
            qkv_bias=biased or kind == "qwen2",
            out_bias=biased,
            hidden_bias=config.flag("mlp_bias", False),
            qk_norm=kind == "qwen3",
            tied=config.flag("tie_word_embeddings", False),
            windows=_windows(config, kind, layers),
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        top = {
            "embedding": Tensor("model.embed_tokens.weight", (self.vocabulary, self.dim)),
            "norm": Tensor("model.norm.weight", (self.dim,)),
            "layers": [self._layer(f"model.layers.{i}.") for i in range(self.layers)],
        }
        if not self.tied:
            top["head"] = Tensor("lm_head.weight", (self.vocabulary, self.dim))
        return top

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner, outer = self.heads * self.head_dim, self.kv_heads * self.head_dim
        maps = {
            "q": ("self_attn.q_proj", inner, self.dim, self.qkv_bias),
            "k": ("self_attn.k_proj", outer, self.dim, self.qkv_bias),
            "v": ("self_attn.v_proj", outer, self.dim, self.qkv_bias),
            "out": ("self_attn.o_proj", self.dim, inner, self.out_bias),
            "up": ("mlp.up_proj", self.hidden, self.dim, self.hidden_bias),
            "down": ("mlp.down_proj", self.dim, self.hidden, self.hidden_bias),
        }
        if self.gated:
            maps["gate"] = ("mlp.gate_proj", self.hidden, self.dim, self.hidden_bias)
        tensors = {
            "attention_norm": Tensor(f"{at}input_layernorm.weight", (self.dim,)),
            "hidden_norm": Tensor(f"{at}post_attention_layernorm.weight", (self.dim,)),
        }
        for name, (stored, rows, columns, biased) in maps.items():
            tensors[name] = Tensor(f"{at}{stored}.weight", (rows, columns))
            if biased:
                tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (rows,))
        if self.qk_norm:
            for name in ("q", "k"):
                stored = f"{at}self_attn.{name}_norm.weight"
                tensors[f"{name}_norm"] = Tensor(stored, (self.head_dim,))
        return tensors

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer."""
        return self.windows[layer] if self.windows else None

    def encoding(self, layer: int) -> Encoding:
        """Return the rotation."""
        return self.rope

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up."""
        return embedded(params["embedding"], tokens)

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, then make queries, keys and values."""
        y = rms_norm(x, params["attention_norm"], self.eps)
        query = split_heads(linear(params, "q", y), self.heads)
        key = split_heads(linear(params, "k", y), self.kv_heads)
        value = split_heads(linear(params, "v", y), self.kv_heads)
        if self.qk_norm:
            query = rms_norm(query, params["q_norm"], self.eps)
            key = rms_norm(key, params["k_norm"], self.eps)
        return query, key, value

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention and feed-forward part to the residual stream."""
        x = carry + linear(params, "out", merged_heads(attended))
        y = rms_norm(x, params["hidden_norm"], self.eps)
        up = linear(params, "up", y)
        gate = activate(self.activation, linear(params, "gate", y) if self.gated else up)
        return x + linear(params, "down", gate * up if self.gated else gate)

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more."""
        return rms_norm(x, params["norm"], self.eps)

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix."""
        return linear({"head": params["embedding" if self.tied else "head"]}, "head", x)


def _windows(config: RawConfig, kind: str, layers: int) -> tuple[int | None, ...]:
    """Find the sliding window of each layer, as each family writes it."""
    if not config.has("sliding_window"):
        return ()
    size = config.size("sliding_window")
    if kind in ("qwen2", "qwen3"):
        if not config.flag("use_sliding_window", False):
            return ()
        if not config.has("layer_types"):
            first = config.size("max_window_layers", layers, least=0)
            return tuple(size if i >= first else None for i in range(layers))
    if config.has("layer_types"):
        kinds = config.words("layer_types", layers)
        return tuple(size if k == "sliding_attention" else None for k in kinds)
    return (size,) * layers if kind == "mistral" else ()
