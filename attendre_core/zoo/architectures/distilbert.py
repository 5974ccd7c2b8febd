"""DistilBERT: BERT without types of tokens, under names of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
from attendre_core.zoo.config import RawConfig

__all__ = ["DistilBert"]

#: What it calls the settings of BERT.
_SETTINGS = {
    "dim": "hidden_size",
    "n_heads": "num_attention_heads",
    "n_layers": "num_hidden_layers",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
}


@dataclass(frozen=True)
class DistilBert(Bert):
    """An encoder as BERT, without types of tokens."""

    prefixes: ClassVar[tuple[str, ...]] = ("distilbert.",)
    layer_names: ClassVar[str] = "transformer.layer."
    map_names: ClassVar[dict[str, str]] = {
        "q": "attention.q_lin",
        "k": "attention.k_lin",
        "v": "attention.v_lin",
        "out": "attention.out_lin",
        "up": "ffn.lin1",
        "down": "ffn.lin2",
    }
    norm_names: ClassVar[dict[str, str]] = {
        "attended_norm": "sa_layer_norm",
        "finished_norm": "output_layer_norm",
    }

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        own = {usual: config.values.get(name) for name, usual in _SETTINGS.items()}
        return cls(**cls._sizes(RawConfig({**config.values, **own}, config.where)))

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        return {name: part for name, part in super().parameters().items() if name != "type"}

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after another one and ReLU."""
        dense = "pre_classifier" if kind == "sequence" else None
        return Head(kind, labels, self.dim, OUT[kind], dense, "relu")
