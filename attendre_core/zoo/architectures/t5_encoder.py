"""The encoder of T5, T5 v1.1, FLAN-T5 or mT5 alone, as in Sentence-T5."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import ClassVar, Literal, Self

from attendre_core.zoo.architectures.base import Architecture
from attendre_core.zoo.architectures.heads import Head, Kind
from attendre_core.zoo.architectures.t5 import T5, T5Part
from attendre_core.zoo.config import RawConfig

__all__ = ["T5Encoder", "is_encoder"]


@dataclass(frozen=True)
class T5Encoder(T5Part, Architecture):
    """An encoder with bucketed relative positions."""

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder"
    prefixes: ClassVar[tuple[str, ...]] = ("transformer.",)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        part = T5.from_config(config).encoder
        return cls(**{field.name: getattr(part, field.name) for field in fields(part)})

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for tokens."""
        return Head(kind, labels, self.dim, "classifier") if kind == "token" else None


def is_encoder(config: RawConfig) -> bool:
    """Whether the classes that a configuration of T5 names are an encoder without a decoder.

    Examples
    --------
    >>> is_encoder(RawConfig({"architectures": ["MT5EncoderModel"]}, "config.json"))
    True
    """
    names = config.values.get("architectures")
    first = names[0] if isinstance(names, (list, tuple)) and names else ""
    return re.fullmatch(r"M?T5(EncoderModel|ForTokenClassification)", str(first)) is not None
