"""The first Transformer, pre-norm, under the names that CTranslate2 gives its tensors."""

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

__all__ = ["CTranslate"]


@dataclass(frozen=True)
class CTranslate(VanillaTransformer):
    """A Transformer as OpenNMT trains it: positions count from 1, embeddings times sqrt(dim).

    The sizes come from the shapes of the tensors; see `attendre_core.zoo.loading.ctranslate`.
    """

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes that the loader found."""
        encoder, decoder = _part(config, "encoder"), _part(config, "decoder")
        start = config.token("decoder_start_token_id", None, decoder.vocabulary)
        return cls(encoder=encoder, decoder=decoder, start=start)

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        size, dim = self.decoder.vocabulary, self.decoder.dim
        return {
            "encoder": _stack(self.encoder, "encoder/"),
            "decoder": _stack(self.decoder, "decoder/"),
            "head": Tensor("decoder/projection/weight", (size, dim)),
            "head_bias": Tensor("decoder/projection/bias", (size,)),
        }


def _part(config: RawConfig, name: str) -> VanillaPart:
    dim, heads = config.size("d_model"), config.size("num_heads")
    if dim % heads or dim < 4:
        raise CheckpointError(
            f"{config.where}: the model is {dim} wide and num_heads is {heads}, expected a "
            'multiple of it. Put a file config.json with {"num_heads": ...} beside the weights.'
        )
    return VanillaPart(
        layers=config.size(f"{name}_layers"),
        dim=dim,
        heads=heads,
        kv_heads=heads,
        head_dim=dim // heads,
        vocabulary=config.size(f"{name}_vocabulary"),
        context=None,
        hidden=config.size(f"{name}_ffn_dim"),
        reads=name == "encoder",
        positions=SinusoidalPositions(dim, steps=dim / 2 - 1, first=1),
        embedding_scale=math.sqrt(dim),
        pre_norm=True,
        activation=config.word("activation", "relu", ACTIVATIONS),
        eps=config.number("layer_norm_epsilon", 1e-5, above=0.0),
    )


def _stack(part: VanillaPart, at: str) -> dict[str, Any]:
    return {
        "embedding": Tensor(f"{at}embeddings/weight", (part.vocabulary, part.dim)),
        **_norm("final", f"{at}layer_norm", part.dim),
        "layers": [_layer(part, f"{at}layer_{i}/") for i in range(part.layers)],
    }


def _layer(part: VanillaPart, at: str) -> dict[str, Tensor]:
    dim, hidden = part.dim, part.hidden
    tensors = {
        **_fused(("q", "k", "v"), f"{at}self_attention/linear_0", dim, dim),
        **_fused(("out",), f"{at}self_attention/linear_1", dim, dim),
        **_fused(("up",), f"{at}ffn/linear_0", hidden, dim),
        **_fused(("down",), f"{at}ffn/linear_1", dim, hidden),
        **_norm("attention", f"{at}self_attention/layer_norm", dim),
        **_norm("hidden", f"{at}ffn/layer_norm", dim),
    }
    if not part.reads:
        tensors |= _fused(("cross_q",), f"{at}attention/linear_0", dim, dim)
        tensors |= _fused(("cross_k", "cross_v"), f"{at}attention/linear_1", dim, dim)
        tensors |= _fused(("cross_out",), f"{at}attention/linear_2", dim, dim)
        tensors |= _norm("cross", f"{at}attention/layer_norm", dim)
    return tensors


def _fused(names: tuple[str, ...], stored: str, rows: int, columns: int) -> dict[str, Tensor]:
    """Name linear maps that are stored in one tensor, one below the other."""
    tensors = {}
    for i, name in enumerate(names):
        part = (i * rows, (i + 1) * rows)
        tensors[name] = Tensor(f"{stored}/weight", (rows, columns), rows=part)
        tensors[f"{name}_bias"] = Tensor(f"{stored}/bias", (rows,), rows=part)
    return tensors


def _norm(name: str, stored: str, dim: int) -> dict[str, Tensor]:
    return {
        f"{name}_norm": Tensor(f"{stored}/gamma", (dim,)),
        f"{name}_norm_bias": Tensor(f"{stored}/beta", (dim,)),
    }
