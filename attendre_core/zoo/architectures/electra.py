"""ELECTRA: BERT whose embeddings may be narrower than its layers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from attendre_core.backend import Array
from attendre_core.zoo.architectures.base import Params, Tensor
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
from attendre_core.zoo.architectures.layers import MOST_TYPES, linear
from attendre_core.zoo.config import RawConfig

__all__ = ["Electra"]


@dataclass(frozen=True)
class Electra(Bert):
    """An encoder as BERT, with a linear map behind the embeddings if their width differs.

    Attributes
    ----------
    narrow
        Width of the embeddings.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("electra.",)

    narrow: int = field(kw_only=True)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        types = config.size("type_vocab_size", 2, most=MOST_TYPES)
        return cls(**cls._sizes(config), types=types, narrow=config.size("embedding_size", 128))

    @property
    def embedding_width(self) -> int:
        """Width of the embeddings."""
        return self.narrow

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        tensors = super().parameters()
        if self.narrow != self.dim:
            tensors["project"] = Tensor("embeddings_project.weight", (self.dim, self.narrow))
            tensors["project_bias"] = Tensor("embeddings_project.bias", (self.dim,))
        return tensors

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after one of its own and GELU."""
        if kind == "sequence":
            out, dense = "classifier.out_proj", "classifier.dense"
            return Head(kind, labels, self.dim, out, dense, "gelu")
        return Head(kind, labels, self.dim, OUT[kind])

    def embed(
        self, params: Params, tokens: Array, position: Array, types: Array | None = None
    ) -> Array:
        """Widen what BERT makes of tokens, types and positions."""
        x = super().embed(params, tokens, position, types)
        return linear(params, "project", x) if "project" in params else x
