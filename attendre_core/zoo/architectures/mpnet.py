"""MPNet: BERT with T5's relative positions in addition, and without types of tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from attendre_core.positions.base import Encoding
from attendre_core.positions.relative_table import T5Bias
from attendre_core.zoo.architectures.base import Params, Tensor
from attendre_core.zoo.architectures.roberta import Roberta
from attendre_core.zoo.config import RawConfig

__all__ = ["MPNet"]

#: MPNet computes these whatever its configuration says.
_BIAS = T5Bias(buckets=32, max_distance=128)
#: So it does with the number of the padding token, from behind which positions are counted.
_PADDING = 1


@dataclass(frozen=True)
class MPNet(Roberta):
    """An encoder whose layers share a table of biases of distances."""

    prefixes: ClassVar[tuple[str, ...]] = ("mpnet.",)
    map_names: ClassVar[dict[str, str]] = {
        "q": "attention.attn.q",
        "k": "attention.attn.k",
        "v": "attention.attn.v",
        "out": "attention.attn.o",
        "up": "intermediate.dense",
        "down": "output.dense",
    }
    norm_names: ClassVar[dict[str, str]] = {
        "attended_norm": "attention.LayerNorm",
        "finished_norm": "output.LayerNorm",
    }

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        buckets = _BIAS.buckets
        config.size("relative_attention_num_buckets", buckets, least=buckets, most=buckets)
        return cls(**cls._sizes(config, first=_PADDING + 1))

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        table = "encoder.relative_attention_bias.weight"
        shared = {"bias_table": Tensor(table, (_BIAS.buckets, self.heads))}
        tensors = super().parameters()
        tensors["layers"] = [shared | layer for layer in tensors["layers"]]
        del tensors["type"]
        return tensors

    def encoding(self, layer: int) -> Encoding:
        """Return the buckets of distances."""
        return _BIAS

    def encoding_params(self, params: Params) -> Any:
        """Return the bias of each bucket and head."""
        return params["bias_table"]
