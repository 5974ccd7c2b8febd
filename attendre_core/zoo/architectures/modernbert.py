"""ModernBERT: an encoder with rotary positions, local and global layers.

::

    x ─┬─ norm ─► q, k, v ─► attention ─► out ─┬─► + ─┬─ norm ─► feed-forward ─┬─► +
       └───────────────────────────────────────┘      └────────────────────────┘

Every n-th layer looks at everything, the others only a few positions to either side. The first
layer has no norm before its attention: the embedding was just normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from attendre_core.backend import Array
from attendre_core.positions.base import Encoding
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.architectures.base import Architecture, Cross, Params, Part, Tensor
from attendre_core.zoo.architectures.heads import Head, Kind
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    activate,
    embedded,
    layer_norm,
    linear,
    merged_heads,
    split_heads,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["ModernBert"]


@dataclass(frozen=True)
class ModernBert(Part, Architecture):
    """An encoder with layer norms, a gated feed-forward part and windows in most layers.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    global_rope, local_rope
        Rotation of layers without and with a window.
    windows
        How far each layer looks to either side, its own position included; None = everywhere.
    attention_bias, hidden_bias, norm_bias
        Which linear maps and norms have biases.
    """

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder"

    hidden: int
    global_rope: RoPE
    local_rope: RoPE
    windows: tuple[int | None, ...]
    eps: float = 1e-5
    activation: str = "gelu"
    attention_bias: bool = False
    hidden_bias: bool = False
    norm_bias: bool = False

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        return cls(
            layers=config.size("num_hidden_layers"),
            dim=dim,
            heads=heads,
            kv_heads=heads,
            head_dim=max(dim // heads, 1),
            vocabulary=config.size("vocab_size"),
            context=config.size("max_position_embeddings", 8192),
            hidden=config.size("intermediate_size"),
            global_rope=config.rope_of("full_attention", "global_rope_theta", 160_000.0),
            local_rope=config.rope_of("sliding_attention", "local_rope_theta", 10_000.0),
            windows=_windows(config),
            eps=config.number("norm_eps", 1e-5),
            activation=config.word("hidden_activation", "gelu", ACTIVATIONS),
            attention_bias=config.flag("attention_bias", False),
            hidden_bias=config.flag("mlp_bias", False),
            norm_bias=config.flag("norm_bias", False),
        )

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map after another one, an activation and a norm."""
        dense = ("dense",) if config.flag("classifier_bias", False) else ()
        norm = ("norm",) if self.norm_bias else ()
        return Head(
            kind, labels, self.dim, "classifier", "head.dense",
            config.word("classifier_activation", "gelu", ACTIVATIONS), "head.norm", self.eps,
            pooling="mean" if config.word("classifier_pooling", "cls", ("cls", "mean")) == "mean"
            else "cls",
            biased=(*dense, *norm, "out"),
        )  # fmt: skip

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint; what predicts hidden words is left out."""
        table = "model.embeddings.tok_embeddings.weight"
        return {
            "embedding": Tensor(table, (self.vocabulary, self.dim)),
            **self._norm_tensors("embedding_norm", "model.embeddings.norm"),
            **self._norm_tensors("norm", "model.final_norm"),
            "layers": [self._layer(i) for i in range(self.layers)],
        }

    def _layer(self, number: int) -> dict[str, Tensor]:
        at = f"model.layers.{number}."
        inner, hidden = self.heads * self.head_dim, self.hidden
        # Queries, keys and values are one matrix in the checkpoint; so are gate and up.
        maps = {
            "q": ("attn.Wqkv", inner, self.dim, 0, self.attention_bias),
            "k": ("attn.Wqkv", inner, self.dim, 1, self.attention_bias),
            "v": ("attn.Wqkv", inner, self.dim, 2, self.attention_bias),
            "out": ("attn.Wo", self.dim, inner, None, self.attention_bias),
            "gate": ("mlp.Wi", hidden, self.dim, 0, self.hidden_bias),
            "up": ("mlp.Wi", hidden, self.dim, 1, self.hidden_bias),
            "down": ("mlp.Wo", self.dim, hidden, None, self.hidden_bias),
        }
        tensors = self._norm_tensors("hidden_norm", f"{at}mlp_norm")
        if number > 0:
            tensors |= self._norm_tensors("attention_norm", f"{at}attn_norm")
        for name, (stored, rows, columns, place, biased) in maps.items():
            part = None if place is None else (place * rows, (place + 1) * rows)
            tensors[name] = Tensor(f"{at}{stored}.weight", (rows, columns), part)
            if biased:
                tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (rows,), part)
        return tensors

    def _norm_tensors(self, name: str, stored: str) -> dict[str, Tensor]:
        tensors = {name: Tensor(f"{stored}.weight", (self.dim,))}
        if self.norm_bias:
            tensors[f"{name}_bias"] = Tensor(f"{stored}.bias", (self.dim,))
        return tensors

    @property
    def causal(self) -> bool:
        """It looks both ways."""
        return False

    def window(self, layer: int) -> int | None:
        """Return how far a layer looks to either side."""
        return self.windows[layer]

    def encoding(self, layer: int) -> Encoding:
        """Return the rotation, which differs between local and global layers."""
        return self.global_rope if self.windows[layer] is None else self.local_rope

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up and normalise."""
        return self._norm(params, "embedding_norm", embedded(params["embedding"], tokens))

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, except in the first layer, then make queries, keys and values."""
        y = self._norm(params, "attention_norm", x) if "attention_norm" in params else x
        return (
            split_heads(linear(params, "q", y), self.heads),
            split_heads(linear(params, "k", y), self.heads),
            split_heads(linear(params, "v", y), self.heads),
        )

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention and feed-forward part to the residual stream."""
        x = carry + linear(params, "out", merged_heads(attended))
        y = self._norm(params, "hidden_norm", x)
        gate = activate(self.activation, linear(params, "gate", y))
        return x + linear(params, "down", gate * linear(params, "up", y))

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more."""
        return self._norm(params, "norm", x)

    def _norm(self, params: Params, name: str, x: Array) -> Array:
        return layer_norm(params[name], params.get(f"{name}_bias"), x, self.eps)


def _windows(config: RawConfig) -> tuple[int | None, ...]:
    """Find the window of each layer, from a list of types or from "every n-th looks far"."""
    layers = config.size("num_hidden_layers")
    # ``local_attention`` counts both sides.
    size = config.size("local_attention", 128, least=0) // 2 + 1
    if config.has("layer_types"):
        kinds = config.words("layer_types", layers)
        return tuple(size if kind == "sliding_attention" else None for kind in kinds)
    every = config.size("global_attn_every_n_layers", 3)
    return tuple(size if i % every else None for i in range(layers))
