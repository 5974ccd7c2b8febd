"""T5, T5 v1.1, FLAN-T5 and mT5: an encoder and a decoder with bucketed relative positions.

::

    x ─┬─ norm ─► attention ─┬─► + ─┬─ norm ─► attention across ─┬─► + ─┬─ norm ─► feed-forward ─┬─► +
       └─────────────────────┘      └────── decoder only ────────┘      └────────────────────────┘
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

from attendre_core.backend import Array
from attendre_core.memory.encoder_output import cross_attention
from attendre_core.ops import rms_norm
from attendre_core.positions.base import Encoding
from attendre_core.positions.relative_table import T5Bias
from attendre_core.zoo.architectures.base import Cross, EncoderDecoder, Params, Part, Tensor
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    activate,
    embedded,
    linear,
    merged_heads,
    split_heads,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["T5", "T5Part"]

#: T5 uses 128; each distance up to it has an entry in a table.
_FARTHEST = 2**16


@dataclass(frozen=True)
class T5Part(Part):
    """The encoder or the decoder of T5: RMS norms, no biases, logits that are not scaled.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    bias
        Buckets of relative positions, in both directions for the encoder. The table of the
        first layer serves all layers.
    gated, activation
        ``down(activation(gate(x)) * up(x))``, or ``down(activation(up(x)))``.
    """

    hidden: int
    bias: T5Bias
    gated: bool = False
    activation: str = "relu"
    eps: float = 1e-6

    @property
    def causal(self) -> bool:
        """Whether this is the decoder."""
        return not self.bias.bidirectional

    @property
    def scale(self) -> float:
        """Logits are as they come: the initial weights make up for it."""
        return 1.0

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of this part of a checkpoint."""
        name = "decoder" if self.causal else "encoder"
        table = f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        shared = {"bias_table": Tensor(table, (self.bias.buckets, self.heads))}
        return {
            "embedding": Tensor(
                "shared.weight",
                (self.vocabulary, self.dim),
                also=("encoder.embed_tokens.weight", "decoder.embed_tokens.weight"),
            ),
            "norm": Tensor(f"{name}.final_layer_norm.weight", (self.dim,)),
            "layers": [
                shared | self._layer(f"{name}.block.{i}.layer.") for i in range(self.layers)
            ],
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner, last = self.heads * self.head_dim, 2 if self.causal else 1
        attentions = [("", f"{at}0.SelfAttention")]
        norms = {"attention_norm": 0, "hidden_norm": last}
        if self.causal:
            attentions.append(("cross_", f"{at}1.EncDecAttention"))
            norms["cross_norm"] = 1
        tensors = {n: Tensor(f"{at}{i}.layer_norm.weight", (self.dim,)) for n, i in norms.items()}
        for prefix, stored in attentions:
            for name in ("q", "k", "v"):
                tensors[prefix + name] = Tensor(f"{stored}.{name}.weight", (inner, self.dim))
            tensors[f"{prefix}out"] = Tensor(f"{stored}.o.weight", (self.dim, inner))
        ups = {"gate": "wi_0", "up": "wi_1"} if self.gated else {"up": "wi"}
        for name, stored in ups.items():
            stored = f"{at}{last}.DenseReluDense.{stored}.weight"
            tensors[name] = Tensor(stored, (self.hidden, self.dim))
        stored = f"{at}{last}.DenseReluDense.wo.weight"
        tensors["down"] = Tensor(stored, (self.dim, self.hidden))
        return tensors

    def encoding(self, layer: int) -> Encoding:
        """Return the buckets."""
        return self.bias

    def encoding_params(self, params: Params) -> Any:
        """Return the bias of each bucket and head."""
        return params["bias_table"]

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up."""
        return embedded(params["embedding"], tokens)

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, then make queries, keys and values."""
        y = rms_norm(x, params["attention_norm"], self.eps)
        query, key, value = (split_heads(linear(params, n, y), self.heads) for n in "qkv")
        return query, key, value

    def cross_project(self, params: Params, encoded: Array) -> tuple[Array, Array]:
        """Make keys and values of the encoder's output."""
        key = split_heads(linear(params, "cross_k", encoded), self.heads)
        return key, split_heads(linear(params, "cross_v", encoded), self.heads)

    def cross_query(self, params: Params, attended: Array, carry: Array) -> Array:
        """Add attention to the residual stream, normalise, and make queries of it."""
        return self._cross_query(params, carry + linear(params, "out", merged_heads(attended)))

    def _cross_query(self, params: Params, x: Array) -> Array:
        y = rms_norm(x, params["cross_norm"], self.eps)
        return split_heads(linear(params, "cross_q", y), self.heads)

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention, attention across and feed-forward part to the residual stream."""
        x = carry + linear(params, "out", merged_heads(attended))
        if cross is not None:
            query = self._cross_query(params, x)
            across = cross_attention(query, *cross, top_k=self.cross_top_k, scale=self.scale)
            x = x + linear(params, "cross_out", merged_heads(across))
        y = rms_norm(x, params["hidden_norm"], self.eps)
        up = linear(params, "up", y)
        gate = activate(self.activation, linear(params, "gate", y) if self.gated else up)
        return x + linear(params, "down", gate * up if self.gated else gate)

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more."""
        return rms_norm(x, params["norm"], self.eps)


@dataclass(frozen=True)
class T5(EncoderDecoder):
    """Text to text.

    Attributes
    ----------
    scaled
        The decoder's output is divided by sqrt(dim) before it meets the output matrix (T5 1.0,
        where this matrix is always the embedding).
    """

    encoder: T5Part
    decoder: T5Part
    start: int
    scaled: bool

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        vocabulary = config.size("vocab_size")
        way = config.word("feed_forward_proj", "relu")
        gated, activation = way.startswith("gated-"), way.removeprefix("gated-")
        if way == "gated-gelu":
            activation = "gelu_new"  # the approximation with tanh
        elif activation not in ACTIVATIONS:
            config.word("feed_forward_proj", among=("gated-gelu", *ACTIVATIONS))
        buckets = config.size("relative_attention_num_buckets", 32, least=4, most=_FARTHEST)
        farthest = config.size(
            "relative_attention_max_distance", 128, least=buckets // 2 + 1, most=_FARTHEST
        )
        layers = config.size("num_layers")
        encoder = T5Part(
            layers=layers,
            dim=config.size("d_model"),
            heads=config.size("num_heads"),
            kv_heads=config.size("num_heads"),
            head_dim=config.size("d_kv"),
            vocabulary=vocabulary,
            context=None,
            hidden=config.size("d_ff"),
            bias=T5Bias(buckets, farthest),
            gated=gated,
            activation=activation,
            eps=config.number("layer_norm_epsilon", 1e-6, above=0.0),
        )
        return cls(
            encoder=encoder,
            decoder=replace(
                encoder,
                layers=config.size("num_decoder_layers", layers),
                bias=T5Bias(buckets, farthest, bidirectional=False),
            ),
            start=config.token(
                "decoder_start_token_id", config.token("pad_token_id", 0, vocabulary), vocabulary
            ),
            # Configurations of v1.1 say that nothing is tied; whether there is an output matrix
            # of its own is a question for the weights, as newer ones no longer say it.
            scaled=config.word("model_type") == "t5"
            and config.flag("scale_decoder_outputs", config.flag("tie_word_embeddings", True)),
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        encoder = self.encoder.parameters()
        shared = encoder["embedding"]
        return {
            "encoder": encoder,
            "decoder": self.decoder.parameters(),
            "head": replace(shared, name="lm_head.weight", also=(shared.name, *shared.also)),
        }

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix."""
        return linear(params, "head", x * self.decoder.dim**-0.5 if self.scaled else x)

    @property
    def end(self) -> tuple[int, ...]:
        """The token </s> of all T5 vocabularies."""
        return (1,)
