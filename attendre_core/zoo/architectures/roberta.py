"""RoBERTa, XLM-R and CamemBERT: BERT whose positions are counted from behind the padding token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
from attendre_core.zoo.architectures.layers import MOST_TYPES
from attendre_core.zoo.config import RawConfig

__all__ = ["Roberta"]


@dataclass(frozen=True)
class Roberta(Bert):
    """An encoder as BERT; the first rows of its table of positions belong to padding."""

    prefixes: ClassVar[tuple[str, ...]] = ("roberta.",)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        sizes = cls._sizes(config, first=config.size("pad_token_id", 1, least=0) + 1)
        return cls(**sizes, types=config.size("type_vocab_size", 2, most=MOST_TYPES))

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after one of its own and tanh."""
        if kind == "sequence":
            return Head(kind, labels, self.dim, "classifier.out_proj", "classifier.dense")
        return Head(kind, labels, self.dim, OUT[kind])
