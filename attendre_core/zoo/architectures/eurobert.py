"""EuroBERT: Llama's layers in an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from attendre_core.backend import Array
from attendre_core.zoo.architectures.base import Architecture, Params
from attendre_core.zoo.architectures.heads import Head, Kind
from attendre_core.zoo.architectures.llama import Llama
from attendre_core.zoo.config import RawConfig

__all__ = ["EuroBert"]


@dataclass(frozen=True)
class EuroBert(Llama):
    """An encoder with RMS norms, rotary positions and grouped K/V heads."""

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder"

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        usual = {"max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
        own = {name: value for name, value in config.values.items() if value is not None}
        own.pop("tie_word_embeddings", None)  # there is no output matrix
        return super().from_config(RawConfig({**usual, **own}, config.where))

    @property
    def causal(self) -> bool:
        """It looks both ways."""
        return False

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after another one and GELU."""
        if kind == "span":
            return None
        if kind == "token":
            return Head(kind, labels, self.dim, "classifier")
        way = config.word("classifier_pooling", "late", ("bos", "mean", "late"))
        return Head(
            kind, labels, self.dim, "classifier", "dense", "gelu",
            pooling="cls" if way == "bos" else "mean", late=way == "late",
        )  # fmt: skip

    def logits(self, params: Params, x: Array) -> Array:
        """Say that an encoder has none."""
        return Architecture.logits(self, params, x)
