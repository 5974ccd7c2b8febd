"""Gemma 3: sliding and global layers, norms before and after every part.

::

    x ─┬─ norm ─► q, k, v ─► attention ─► out ─ norm ─┬─► + ─┬─ norm ─► feed-forward ─ norm ─┬─► +
       └──────────────────────────────────────────────┘      └───────────────────────────────┘

Most layers look back only as far as their window, with a rotation of their own; every n-th layer
looks at everything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from attendre_core.backend import Array, backend_of, wide
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

__all__ = ["Gemma"]

_NORMS = {
    "attention_norm": "input_layernorm",
    "attended_norm": "post_attention_layernorm",
    "hidden_norm": "pre_feedforward_layernorm",
    "finished_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True)
class Gemma(Part, Architecture):
    """A decoder with centred RMS norms, normalised queries and keys, and a gated feed-forward part.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    global_rope, local_rope
        Rotation of layers without and with a window.
    windows
        Sliding window of each layer; None looks at everything.
    query_scalar
        Logits are divided by its square root.
    bias
        Whether the linear maps of attention have biases.
    bidirectional
        It reads in both directions (EmbeddingGemma).
    logit_cap
        Next-token logits are bent to stay between minus and plus this; None leaves them.
    tied
        The embedding is also the output matrix.
    end
        Token ids that end a text.
    """

    #: Checkpoints of models that also see keep the text part under one of these names.
    prefixes: ClassVar[tuple[str, ...]] = (
        "model.",
        "language_model.",
        "language_model.model.",
        "model.language_model.",
    )

    hidden: int
    global_rope: RoPE
    local_rope: RoPE
    windows: tuple[int | None, ...]
    query_scalar: float = 256.0
    eps: float = 1e-6
    activation: str = "gelu_pytorch_tanh"
    bias: bool = False
    bidirectional: bool = False
    logit_cap: float | None = None
    tied: bool = True
    end: tuple[int, ...] = ()

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``, or from its ``text_config``.

        Published files leave out what equals the defaults, so these are needed here.
        """
        if config.has("text_config"):
            config = config.part("text_config")
        both_ways = config.flag("use_bidirectional_attention", False)
        cap = "final_logit_softcapping"
        return cls(
            layers=config.size("num_hidden_layers", 26),
            dim=config.size("hidden_size", 2304),
            heads=config.size("num_attention_heads", 8),
            kv_heads=config.size("num_key_value_heads", 4),
            head_dim=config.size("head_dim", 256),
            vocabulary=config.size("vocab_size", 262_208),
            context=config.size("max_position_embeddings", 131_072),
            hidden=config.size("intermediate_size", 9216),
            global_rope=config.rope_of("full_attention", "rope_theta", 1e6),
            local_rope=config.rope_of("sliding_attention", "rope_local_base_freq", 1e4),
            windows=_windows(config, both_ways),
            query_scalar=config.number("query_pre_attn_scalar", 256.0, above=0.0),
            eps=config.number("rms_norm_eps", 1e-6),
            activation=config.word("hidden_activation", "gelu_pytorch_tanh", ACTIVATIONS),
            bias=config.flag("attention_bias", False),
            bidirectional=both_ways,
            logit_cap=config.number(cap, above=0.0) if config.has(cap) else None,
            tied=config.flag("tie_word_embeddings", True),
            end=config.tokens("eos_token_id"),
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        top = {
            "embedding": Tensor("embed_tokens.weight", (self.vocabulary, self.dim)),
            "norm": Tensor("norm.weight", (self.dim,)),
            "layers": [self._layer(f"layers.{i}.") for i in range(self.layers)],
        }
        if not self.tied:
            top["head"] = Tensor("lm_head.weight", (self.vocabulary, self.dim))
        return top

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner, outer = self.heads * self.head_dim, self.kv_heads * self.head_dim
        maps = {
            "q": ("self_attn.q_proj", inner, self.dim, self.bias),
            "k": ("self_attn.k_proj", outer, self.dim, self.bias),
            "v": ("self_attn.v_proj", outer, self.dim, self.bias),
            "out": ("self_attn.o_proj", self.dim, inner, self.bias),
            "gate": ("mlp.gate_proj", self.hidden, self.dim, False),
            "up": ("mlp.up_proj", self.hidden, self.dim, False),
            "down": ("mlp.down_proj", self.dim, self.hidden, False),
        }
        tensors = {
            name: Tensor(f"{at}{stored}.weight", (self.dim,)) for name, stored in _NORMS.items()
        }
        for name, (stored, rows, columns, biased) in maps.items():
            tensors[name] = Tensor(f"{at}{stored}.weight", (rows, columns))
            if biased:
                tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (rows,))
        for name in ("q", "k"):
            stored = f"{at}self_attn.{name}_norm.weight"
            tensors[f"{name}_norm"] = Tensor(stored, (self.head_dim,))
        return tensors

    @property
    def causal(self) -> bool:
        """Whether a position attends only to itself and what came before."""
        return not self.bidirectional

    @property
    def scale(self) -> float:
        """Multiplies the logits."""
        return 1.0 / math.sqrt(self.query_scalar)

    def window(self, layer: int) -> int | None:
        """Return the sliding window of a layer."""
        return self.windows[layer]

    def encoding(self, layer: int) -> Encoding:
        """Return the rotation, which differs between sliding and global layers."""
        return self.global_rope if self.windows[layer] is None else self.local_rope

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up and scale them."""
        x = embedded(params["embedding"], tokens)
        found = backend_of(x)
        # The factor was rounded to the dtype of the embedding when the model was trained.
        factor = found.xp.asarray(math.sqrt(self.dim), dtype=x.dtype, device=found.device_of(x))
        return x * factor

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, make queries, keys and values, and normalise the first two again."""
        y = self._norm(params, "attention_norm", x)
        query = split_heads(linear(params, "q", y), self.heads)
        key = split_heads(linear(params, "k", y), self.kv_heads)
        value = split_heads(linear(params, "v", y), self.kv_heads)
        return self._norm(params, "q_norm", query), self._norm(params, "k_norm", key), value

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention and feed-forward part, each normalised, to the residual stream."""
        out = linear(params, "out", merged_heads(attended))
        x = carry + self._norm(params, "attended_norm", out)
        y = self._norm(params, "hidden_norm", x)
        gate = activate(self.activation, linear(params, "gate", y))
        down = linear(params, "down", gate * linear(params, "up", y))
        return x + self._norm(params, "finished_norm", down)

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more."""
        return self._norm(params, "norm", x)

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix, and bend the result where the model does."""
        y = linear({"head": params["embedding" if self.tied else "head"]}, "head", x)
        if self.logit_cap is None:
            return y
        return backend_of(y).xp.tanh(y / self.logit_cap) * self.logit_cap

    def _norm(self, params: Params, name: str, x: Array) -> Array:
        """Divide by the root mean square; the weight, stored minus one, is applied unrounded."""
        xp = backend_of(x).xp
        y = wide(x)
        y = y / xp.sqrt(xp.mean(y * y, axis=-1, keepdims=True) + self.eps)
        return xp.astype(y * (1.0 + wide(params[name])), x.dtype)


def _windows(config: RawConfig, both_ways: bool) -> tuple[int | None, ...]:
    """Find the window of each layer, from a list of types or from "every n-th looks far"."""
    layers = config.size("num_hidden_layers", 26)
    size = config.size("sliding_window", 4096)
    if both_ways:
        size = size // 2 + 1  # written as the sum of both sides
    if config.has("layer_types"):
        kinds = config.words("layer_types", layers)
        return tuple(size if kind == "sliding_attention" else None for kind in kinds)
    every = config.size("sliding_window_pattern", 6)
    return tuple(size if (i + 1) % every else None for i in range(layers))
