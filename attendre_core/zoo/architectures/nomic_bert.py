"""NomicBERT: BERT with rotary positions, a gated feed-forward part and no biases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from attendre_core.backend import Array
from attendre_core.errors import CheckpointError
from attendre_core.positions.base import Encoding
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.architectures.base import Params, Tensor
from attendre_core.zoo.architectures.bert import Bert
from attendre_core.zoo.architectures.heads import OUT, Head, Kind
from attendre_core.zoo.architectures.layers import MOST_TYPES, activate, linear
from attendre_core.zoo.config import RawConfig

__all__ = ["NomicBert"]

#: What the first configurations call the settings of BERT.
_SETTINGS = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_GATES = {"swiglu": "silu", "geglu": "gelu"}
#: Settings of the first configurations, and the only value with which they are computed here.
_FIXED = {
    "prenorm": False,
    "use_rms_norm": False,
    "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
    "qkv_proj_bias": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "num_experts": 0,
}


@dataclass(frozen=True)
class NomicBert(Bert):
    """An encoder that normalises after each part, rotates, and has gates.

    Attributes
    ----------
    rope
        The rotation.
    """

    prefixes: ClassVar[tuple[str, ...]] = ("nomic_bert.", "bert.")

    rope: RoPE = field(kw_only=True)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``, whose names are those of GPT-2 or those of BERT."""
        for name, usual in _FIXED.items():
            given = config.values.get(name)
            if given is not None and given != usual:
                raise CheckpointError(
                    f"{config.where}: {name} is {str(given)[:40]}, expected {usual}. This kind of "
                    "NomicBERT is not supported."
                )
        own = {usual: config.values[name] for name, usual in _SETTINGS.items() if config.has(name)}
        if config.has("activation_function"):
            own["hidden_act"] = _GATES[config.word("activation_function", among=tuple(_GATES))]
        usual_ones = {"hidden_act": "silu", "max_position_embeddings": 2048}
        config = RawConfig({**usual_ones, **config.values, **own}, config.where)
        return cls(
            **cls._sizes(config),
            types=config.size("type_vocab_size", 2, most=MOST_TYPES),
            rope=config.rope(1000.0),
        )

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return a linear map, for sequences after the pooler."""
        if kind == "span":
            return None
        dense = "pooler.dense" if kind == "sequence" else None
        return Head(kind, labels, self.dim, OUT[kind], dense)

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        at = "embeddings."
        return {
            "embedding": Tensor(f"{at}word_embeddings.weight", (self.vocabulary, self.dim)),
            "type": Tensor(f"{at}token_type_embeddings.weight", (self.types, self.dim)),
            **self._norm_tensors("norm", "emb_ln", self.dim),
            "layers": [self._layer(f"encoder.layers.{i}.") for i in range(self.layers)],
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner = self.heads * self.head_dim
        tensors = {
            **self._norm_tensors("attended_norm", f"{at}norm1", self.dim),
            **self._norm_tensors("finished_norm", f"{at}norm2", self.dim),
            "out": Tensor(f"{at}attn.out_proj.weight", (self.dim, inner)),
            "up": Tensor(f"{at}mlp.fc11.weight", (self.hidden, self.dim)),
            "gate": Tensor(f"{at}mlp.fc12.weight", (self.hidden, self.dim)),
            "down": Tensor(f"{at}mlp.fc2.weight", (self.dim, self.hidden)),
        }
        for place, name in enumerate("qkv"):
            rows = (place * inner, (place + 1) * inner)
            tensors[name] = Tensor(f"{at}attn.Wqkv.weight", (inner, self.dim), rows)
        return tensors

    def encoding(self, layer: int) -> Encoding:
        """Return the rotation."""
        return self.rope

    def _inner(self, params: Params, x: Array) -> Array:
        gate = activate(self.activation, linear(params, "gate", x))
        return gate * linear(params, "up", x)
