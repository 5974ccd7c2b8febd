"""BERT and MiniLM: an encoder that normalises after each part.

::

    x ─┬─► q, k, v ─► attention ─► out ─┬─► + ─ norm ─┬─► feed-forward ─┬─► + ─ norm ─►
       └────────────────────────────────┘             └─────────────────┘

Positions are a table that is added to the input; beyond its end it starts again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from attendre_core.backend import Array
from attendre_core.errors import CheckpointError
from attendre_core.positions.learned import LearnedPositions
from attendre_core.zoo.architectures.base import Architecture, Cross, Params, Part, Tensor
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
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
    first
        Rows of that table in the checkpoint that come before the first position.
    """

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder"
    prefixes: ClassVar[tuple[str, ...]] = ("bert.",)
    #: What a checkpoint calls its layers, their linear maps and their norms.
    layer_names: ClassVar[str] = "encoder.layer."
    map_names: ClassVar[dict[str, str]] = {
        "q": "attention.self.query",
        "k": "attention.self.key",
        "v": "attention.self.value",
        "out": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    }
    norm_names: ClassVar[dict[str, str]] = {
        "attended_norm": "attention.output.LayerNorm",
        "finished_norm": "output.LayerNorm",
    }

    hidden: int
    positions: int
    eps: float = 1e-12
    activation: str = "gelu"
    first: int = field(default=0, kw_only=True, repr=False)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        return cls(**cls._sizes(config), types=config.size("type_vocab_size", 2, most=MOST_TYPES))

    @classmethod
    def _sizes(cls, config: RawConfig, first: int = 0) -> dict[str, Any]:
        """Read what all relatives of BERT have."""
        if config.flag("is_decoder", False):
            raise CheckpointError(
                f"{config.where}: is_decoder is true, expected a {cls.__name__} that encodes. Its "
                "decoders are not supported."
            )
        config.word("position_embedding_type", "absolute", ("absolute",))
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        positions = config.size("max_position_embeddings", 512, least=first + 1) - first
        return {
            "layers": config.size("num_hidden_layers"),
            "dim": dim,
            "heads": heads,
            "kv_heads": heads,
            "head_dim": max(dim // heads, 1),
            "vocabulary": config.size("vocab_size"),
            "context": positions,
            "hidden": config.size("intermediate_size"),
            "positions": positions,
            "eps": config.number("layer_norm_eps", 1e-12),
            "activation": config.word("hidden_act", "gelu", ACTIVATIONS),
            "first": first,
        }

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after the pooler."""
        dense = "pooler.dense" if kind == "sequence" else None
        return Head(kind, labels, self.dim, OUT[kind], dense)

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint; the pooler is part of a head."""
        at, width = "embeddings.", self.embedding_width
        rows = (self.first, self.first + self.positions) if self.first else None
        places = Tensor(f"{at}position_embeddings.weight", (self.positions, width), rows)
        return {
            "embedding": Tensor(f"{at}word_embeddings.weight", (self.vocabulary, width)),
            "position": places,
            "type": Tensor(f"{at}token_type_embeddings.weight", (self.types, width)),
            **self._norm_tensors("norm", f"{at}LayerNorm", width),
            "layers": [self._layer(f"{self.layer_names}{i}.") for i in range(self.layers)],
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner = self.heads * self.head_dim
        shapes = {"out": (self.dim, inner), "up": (self.hidden, self.dim)}
        shapes["down"] = (self.dim, self.hidden)
        tensors: dict[str, Tensor] = {}
        for name, stored in self.norm_names.items():
            tensors |= self._norm_tensors(name, at + stored, self.dim)
        for name, stored in self.map_names.items():
            shape = shapes.get(name, (inner, self.dim))
            tensors[name] = Tensor(f"{at}{stored}.weight", shape)
            tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", shape[:1])
        return tensors

    def _norm_tensors(self, name: str, stored: str, width: int) -> dict[str, Tensor]:
        """Name a norm's tensors, which the oldest checkpoints call gamma and beta."""
        return {
            name: Tensor(f"{stored}.weight", (width,), also=(f"{stored}.gamma",)),
            f"{name}_bias": Tensor(f"{stored}.bias", (width,), also=(f"{stored}.beta",)),
        }

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.dim

    @property
    def causal(self) -> bool:
        """It looks both ways."""
        return False

    def embed(
        self, params: Params, tokens: Array, position: Array, types: Array | None = None
    ) -> Array:
        """Add tokens, their types and positions, and normalise."""
        return self._norm(params, "norm", self._added(params, tokens, position, types))

    def _added(self, params: Params, tokens: Array, position: Array, types: Array | None) -> Array:
        """Add tokens, their types and positions, as far as there are tables."""
        x = embedded(params["embedding"], tokens)
        if "type" in params:
            x = x + typed(params["type"], types)
        if "position" in params:
            # The last row again and again makes all that is far alike, whatever it says.
            places = LearnedPositions(self.positions, beyond="wrap")
            x = x + places.embed(params["position"], position)
        return x

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
        inner = linear(params, "down", self._inner(params, x))
        return self._norm(params, "finished_norm", x + inner)

    def _inner(self, params: Params, x: Array) -> Array:
        return activate(self.activation, linear(params, "up", x))

    def final(self, params: Params, x: Array) -> Array:
        """Leave the last layer's output as it is."""
        return x

    def _norm(self, params: Params, name: str, x: Array) -> Array:
        return layer_norm(params[name], params[f"{name}_bias"], x, self.eps)
