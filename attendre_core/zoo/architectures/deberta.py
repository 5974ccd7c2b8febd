"""DeBERTa v2 and v3: BERT whose queries and keys also attend to distances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from attendre_core.backend import Array, backend_of
from attendre_core.errors import CheckpointError
from attendre_core.positions.base import Encoding
from attendre_core.positions.published.deberta import DisentangledPositions
from attendre_core.zoo.architectures.base import Params, Tensor
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    MOST_TYPES,
    layer_norm,
    linear,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["Deberta"]

#: DeBERTa uses 512; each distance up to it has an entry in a table.
_FARTHEST = 2**16


@dataclass(frozen=True)
class Deberta(Bert):
    """An encoder with disentangled attention.

    Attributes
    ----------
    narrow
        Width of the embeddings.
    distances
        How distances attend; None = they do not.
    terms
        ``"c2p"``: queries attend to distances. ``"p2c"``: distances attend to keys.
    shared
        Distances go through the maps of queries and keys, not through maps of their own.
    placed, kinds
        Whether there are tables of positions and of types of tokens.
    distance_norm
        Whether the table of distances is normalised.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("deberta.",)
    map_names: ClassVar[dict[str, str]] = {
        "q": "attention.self.query_proj",
        "k": "attention.self.key_proj",
        "v": "attention.self.value_proj",
        "out": "attention.output.dense",
        "up": "intermediate.dense",
        "down": "output.dense",
    }

    narrow: int = field(kw_only=True)
    distances: DisentangledPositions | None = field(kw_only=True)
    terms: tuple[str, ...] = field(kw_only=True)
    shared: bool = field(kw_only=True)
    placed: bool = field(kw_only=True)
    kinds: bool = field(kw_only=True)
    distance_norm: bool = field(kw_only=True)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        if config.size("conv_kernel_size", 0, least=0):
            raise CheckpointError(
                f"{config.where}: conv_kernel_size is not 0, expected a DeBERTa without "
                "convolutions. They are not supported; the base and large models have none."
            )
        sizes = cls._sizes(config)
        sizes["eps"] = config.number("layer_norm_eps", 1e-7)
        sizes["head_dim"] = config.size("attention_head_size", sizes["head_dim"])
        types, terms = config.size("type_vocab_size", 0, least=0, most=MOST_TYPES), _terms(config)
        distances = None
        if config.flag("relative_attention", False) and terms:
            reach = config.size("max_relative_positions", -1, least=-1, most=_FARTHEST)
            if reach < 1:
                reach = config.size("max_position_embeddings", 512, most=_FARTHEST)
            buckets = config.size("position_buckets", -1, least=-1, most=_FARTHEST)
            scale = (sizes["head_dim"] * (1 + len(terms))) ** -0.5
            distances = DisentangledPositions(reach, buckets if buckets > 0 else None, terms, scale)
        return cls(
            **sizes,
            types=max(types, 1),
            narrow=config.size("embedding_size", sizes["dim"]),
            distances=distances,
            terms=terms,
            shared=config.flag("share_att_key", False),
            placed=config.flag("position_biased_input", True),
            kinds=types > 0,
            distance_norm="layer_norm" in config.word("norm_rel_ebd", "none").lower(),
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        tensors = super().parameters() | self._norm_tensors(
            "norm", "embeddings.LayerNorm", self.dim
        )
        if not self.placed:
            del tensors["position"]
        if not self.kinds:
            del tensors["type"]
        if self.narrow != self.dim:
            tensors["project"] = Tensor("embeddings.embed_proj.weight", (self.dim, self.narrow))
        if self.distances is not None:
            rows = (2 * self.distances.span, self.dim)
            table = {"distances": Tensor("encoder.rel_embeddings.weight", rows)}
            if self.distance_norm:
                table |= self._norm_tensors("distance_norm", "encoder.LayerNorm", self.dim)
            tensors["layers"] = [
                table | layer | self._distance_maps(f"{self.layer_names}{i}.attention.self.")
                for i, layer in enumerate(tensors["layers"])
            ]
        return tensors

    def _distance_maps(self, at: str) -> dict[str, Tensor]:
        inner, tensors = self.heads * self.head_dim, {}
        for name, term, stored in (("k", "c2p", "pos_key"), ("q", "p2c", "pos_query")):
            if term in self.terms and not self.shared:
                weight = f"{at}{stored}_proj.weight"
                tensors[f"distance_{name}"] = Tensor(weight, (inner, self.dim))
                tensors[f"distance_{name}_bias"] = Tensor(f"{at}{stored}_proj.bias", (inner,))
        return tensors

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.narrow

    @property
    def scale(self) -> float:
        """Logits are sums of one product and one for each of the terms."""
        return float((self.head_dim * (1 + len(self.terms))) ** -0.5)

    def encoding(self, layer: int) -> Encoding:
        """Return how distances attend."""
        return Encoding() if self.distances is None else self.distances

    def encoding_params(self, params: Params) -> Any:
        """Return keys and queries of distances."""
        if "distances" not in params:
            return None
        rows = params["distances"]
        if self.distance_norm:
            rows = layer_norm(params["distance_norm"], params["distance_norm_bias"], rows, self.eps)
        xp = backend_of(rows).xp

        made = [
            linear(params, name if self.shared else f"distance_{name}", rows[None, :, :])
            for name, term in (("k", "c2p"), ("q", "p2c"))
            if term in self.terms
        ]
        return xp.reshape(xp.concat(made, axis=1), (-1, self.heads, self.head_dim))

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after the pooler."""
        dense = "pooler.dense" if kind == "sequence" else None
        activation = config.word("pooler_hidden_act", "gelu", ACTIVATIONS)
        config.size("pooler_hidden_size", self.dim, least=self.dim, most=self.dim)
        return Head(kind, labels, self.dim, OUT[kind], dense, activation)

    def embed(
        self, params: Params, tokens: Array, position: Array, types: Array | None = None
    ) -> Array:
        """Add tokens, types and positions, as far as there are tables; widen; normalise."""
        x = self._added(params, tokens, position, types)
        if "project" in params:
            x = linear(params, "project", x)
        return self._norm(params, "norm", x)


def _terms(config: RawConfig) -> tuple[str, ...]:
    """Return which products are added to the logits; older files separate them by bars."""
    given = config.values.get("pos_att_type") or ()
    given = given.lower().split("|") if isinstance(given, str) else given
    listed = [str(term).strip() for term in given] if isinstance(given, (list, tuple)) else [""]
    if not set(listed) <= {"c2p", "p2c"}:
        raise CheckpointError(
            f"{config.where}: pos_att_type is {str(given)[:80]!r}, expected a list of 'c2p' and "
            "'p2c'."
        )
    return tuple(term for term in ("c2p", "p2c") if term in listed)
