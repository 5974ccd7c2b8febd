"""BERT and MiniLM: an encoder that normalises after each part.

::

    x ─┬─► q, k, v ─► attention ─► out ─┬─► + ─ norm ─┬─► feed-forward ─┬─► + ─ norm ─►
       └────────────────────────────────┘             └─────────────────┘

Positions are a table that is added to the input; beyond its end the last row is used again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from attendre_core.backend import Array
from attendre_core.errors import CheckpointError
from attendre_core.positions.learned import LearnedPositions
from attendre_core.zoo.architectures.base import Architecture, Cross, Params, Part, Tensor
from attendre_core.zoo.architectures.heads import Head, Kind
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    MOST_TYPES,
    activate,
    embedded,
    layer_norm,
    linear,
    merged_heads,
    split_heads,
    typed,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["Bert"]


@dataclass(frozen=True)
class Bert(Part, Architecture):
    """An encoder with learned positions and types of tokens, such as question and passage.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    positions
        Rows of the table of positions.
    """

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder"
    prefixes: ClassVar[tuple[str, ...]] = ("bert.",)

    hidden: int
    positions: int
    eps: float = 1e-12
    activation: str = "gelu"

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        if config.flag("is_decoder", False):
            raise CheckpointError(
                f"{config.where}: is_decoder is true, expected a BERT that encodes. Its decoders "
                "are not supported."
            )
        config.word("position_embedding_type", "absolute", ("absolute",))
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        positions = config.size("max_position_embeddings", 512)
        return cls(
            layers=config.size("num_hidden_layers"),
            dim=dim,
            heads=heads,
            kv_heads=heads,
            head_dim=max(dim // heads, 1),
            vocabulary=config.size("vocab_size"),
            context=positions,
            hidden=config.size("intermediate_size"),
            positions=positions,
            eps=config.number("layer_norm_eps", 1e-12),
            activation=config.word("hidden_act", "gelu", ACTIVATIONS),
            types=config.size("type_vocab_size", 2, most=MOST_TYPES),
        )

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after the pooler."""
        dense = "pooler.dense" if kind == "sequence" else None
        out = "qa_outputs" if kind == "span" else "classifier"
        return Head(kind, labels, self.dim, out, dense)

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint; the pooler is part of a head."""
        at = "embeddings."
        return {
            "embedding": Tensor(f"{at}word_embeddings.weight", (self.vocabulary, self.dim)),
            "position": Tensor(f"{at}position_embeddings.weight", (self.positions, self.dim)),
            "type": Tensor(f"{at}token_type_embeddings.weight", (self.types, self.dim)),
            **self._norm_tensors("norm", f"{at}LayerNorm"),
            "layers": [self._layer(f"encoder.layer.{i}.") for i in range(self.layers)],
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner = self.heads * self.head_dim
        maps = {
            "q": ("attention.self.query", inner, self.dim),
            "k": ("attention.self.key", inner, self.dim),
            "v": ("attention.self.value", inner, self.dim),
            "out": ("attention.output.dense", self.dim, inner),
            "up": ("intermediate.dense", self.hidden, self.dim),
            "down": ("output.dense", self.dim, self.hidden),
        }
        tensors = {
            **self._norm_tensors("attended_norm", f"{at}attention.output.LayerNorm"),
            **self._norm_tensors("finished_norm", f"{at}output.LayerNorm"),
        }
        for name, (stored, rows, columns) in maps.items():
            tensors[name] = Tensor(f"{at}{stored}.weight", (rows, columns))
            tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (rows,))
        return tensors

    def _norm_tensors(self, name: str, stored: str) -> dict[str, Tensor]:
        """Name a norm's tensors, which the oldest checkpoints call gamma and beta."""
        shape = (self.dim,)
        return {
            name: Tensor(f"{stored}.weight", shape, also=(f"{stored}.gamma",)),
            f"{name}_bias": Tensor(f"{stored}.bias", shape, also=(f"{stored}.beta",)),
        }

    @property
    def causal(self) -> bool:
        """It looks both ways."""
        return False

    def embed(
        self, params: Params, tokens: Array, position: Array, types: Array | None = None
    ) -> Array:
        """Add tokens, their types and positions, and normalise."""
        place = LearnedPositions(self.positions).embed(params["position"], position)
        x = embedded(params["embedding"], tokens) + typed(params["type"], types) + place
        return self._norm(params, "norm", x)

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Make queries, keys and values."""
        return (
            split_heads(linear(params, "q", x), self.heads),
            split_heads(linear(params, "k", x), self.heads),
            split_heads(linear(params, "v", x), self.heads),
        )

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention and normalise; add the feed-forward part and normalise."""
        out = linear(params, "out", merged_heads(attended))
        x = self._norm(params, "attended_norm", carry + out)
        inner = activate(self.activation, linear(params, "up", x))
        return self._norm(params, "finished_norm", x + linear(params, "down", inner))

    def final(self, params: Params, x: Array) -> Array:
        """Leave the last layer's output as it is."""
        return x

    def _norm(self, params: Params, name: str, x: Array) -> Array:
        return layer_norm(params[name], params[f"{name}_bias"], x, self.eps)
