"""Marian and OPUS-MT: the first Transformer, post-norm, as transformers stores it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Self

from attendre_core.errors import CheckpointError
from attendre_core.positions.sinusoidal import SinusoidalPositions
from attendre_core.zoo.architectures.base import Tensor
from attendre_core.zoo.architectures.layers import ACTIVATIONS
from attendre_core.zoo.architectures.vanilla import VanillaPart, VanillaTransformer
from attendre_core.zoo.config import RawConfig

__all__ = ["Marian"]


@dataclass(frozen=True)
class Marian(VanillaTransformer):
    """A translator between two languages.

    Attributes
    ----------
    shared
        One embedding serves both languages.
    """

    shared: bool = True

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        vocabulary = config.size("vocab_size")
        shared = config.flag("share_encoder_decoder_embeddings", True)
        written = vocabulary if shared else config.size("decoder_vocab_size", vocabulary)
        pad = config.token("pad_token_id", min(58100, written - 1), written)
        return cls(
            encoder=_part(config, "encoder", vocabulary),
            decoder=_part(config, "decoder", written),
            start=config.token("decoder_start_token_id", pad, written),
            # Its vector was never trained, so its logits mean nothing.
            banned=(pad,),
            shared=shared,
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        reading = _embedding(self.encoder, "model.encoder.embed_tokens.weight")
        writing = _embedding(self.decoder, "model.decoder.embed_tokens.weight", "lm_head.weight")
        if self.shared:
            names = (reading.name, writing.name, *writing.also)
            reading = writing = _embedding(self.encoder, "model.shared.weight", *names)
        head = _embedding(self.decoder, "lm_head.weight", writing.name, *writing.also)
        return {
            "encoder": {"embedding": reading, "layers": _layers(self.encoder, "model.encoder")},
            "decoder": {"embedding": writing, "layers": _layers(self.decoder, "model.decoder")},
            "head": head,
            "head_bias": Tensor("final_logits_bias", (1, self.decoder.vocabulary)),
        }

    @property
    def end(self) -> tuple[int, ...]:
        """The token </s> of OPUS-MT."""
        return (0,)


def _part(config: RawConfig, name: str, vocabulary: int) -> VanillaPart:
    dim, heads = config.size("d_model"), config.size(f"{name}_attention_heads")
    if dim % heads:
        raise CheckpointError(
            f"{config.where}: d_model is {dim} and {name}_attention_heads {heads}, expected a "
            "multiple of it, so that each head is as wide. Download the file again."
        )
    return VanillaPart(
        layers=config.size(f"{name}_layers"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        vocabulary=vocabulary,
        context=config.size("max_position_embeddings", 1024),
        hidden=config.size(f"{name}_ffn_dim"),
        reads=name == "encoder",
        positions=SinusoidalPositions(dim),
        embedding_scale=math.sqrt(dim) if config.flag("scale_embedding", False) else 1.0,
        pre_norm=False,
        activation=config.word("activation_function", "gelu", ACTIVATIONS),
    )


def _embedding(part: VanillaPart, name: str, *also: str) -> Tensor:
    return Tensor(name, (part.vocabulary, part.dim), also=also)


def _layers(part: VanillaPart, name: str) -> list[dict[str, Tensor]]:
    return [_layer(part, f"{name}.layers.{i}.") for i in range(part.layers)]


def _layer(part: VanillaPart, at: str) -> dict[str, Tensor]:
    square = (part.dim, part.dim)
    maps = {
        "up": ("fc1", (part.hidden, part.dim)),
        "down": ("fc2", (part.dim, part.hidden)),
        "attention_norm": ("self_attn_layer_norm", (part.dim,)),
        "hidden_norm": ("final_layer_norm", (part.dim,)),
    }
    for name in ("q", "k", "v", "out"):
        maps[name] = (f"self_attn.{name}_proj", square)
        if not part.reads:
            maps[f"cross_{name}"] = (f"encoder_attn.{name}_proj", square)
    if not part.reads:
        maps["cross_norm"] = ("encoder_attn_layer_norm", (part.dim,))
    tensors = {}
    for name, (stored, shape) in maps.items():
        tensors[name] = Tensor(f"{at}{stored}.weight", shape)
        tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", shape[:1])
    return tensors
