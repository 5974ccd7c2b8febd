"""Parallel blocks, as PaLM introduced them: Cohere's Command-R, and Falcon.

::

    x ─┬─ norm ─┬─► q, k, v ─► attention ─► out ─┬─► + ─►
       │        └─► feed-forward ────────────────┤
       └─────────────────────────────────────────┘

Attention and the feed-forward part read the same input and are added to it together. PaLM has one
K/V head for all query heads, no biases and one table for input and output; with
``attention="prefix"`` it reads its prompt in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from attendre_core.backend import Array, backend_of
from attendre_core.errors import CheckpointError
from attendre_core.positions.base import Encoding
from attendre_core.positions.rope import RoPE
from attendre_core.zoo.architectures.base import Architecture, Cross, Params, Part, Tensor
from attendre_core.zoo.architectures.layers import (
    ACTIVATIONS,
    activate,
    embedded,
    layer_norm,
    linear,
    merged_heads,
    split_heads,
)
from attendre_core.zoo.config import RawConfig

__all__ = ["Cohere", "Falcon", "Palm"]


@dataclass(frozen=True)
class Palm(Part, Architecture):
    """A decoder of parallel blocks; the families differ in how they make queries and keys.

    Attributes
    ----------
    hidden
        Width of the feed-forward part; gated if there is a parameter ``gate``.
    bias
        Which linear maps have biases: those of attention (Cohere), or all (Falcon).
    tied
        The embedding is also the output matrix.
    """

    hidden: int
    rope: RoPE
    eps: float = 1e-5
    activation: str = "silu"
    bias: bool = False
    tied: bool = True

    def encoding(self, layer: int) -> Encoding:
        """Return the rotation."""
        return self.rope

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up."""
        return embedded(params["embedding"], tokens)

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention and feed-forward part to the residual stream, both at once."""
        # A norm of its own for the feed-forward part is an exception (Falcon-40B).
        y = self._norm(params, "hidden_norm" if "hidden_norm" in params else "norm", carry)
        up = linear(params, "up", y)
        if "gate" in params:
            inner = activate(self.activation, linear(params, "gate", y)) * up
        else:
            inner = activate(self.activation, up)
        return carry + linear(params, "out", merged_heads(attended)) + linear(params, "down", inner)

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more."""
        return self._norm(params, "norm", x)

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix."""
        return linear({"head": params["embedding" if self.tied else "head"]}, "head", x)

    def _norm(self, params: Params, name: str, x: Array) -> Array:
        return layer_norm(params[name], params.get(f"{name}_bias"), x, self.eps)

    def _head(self) -> dict[str, Tensor]:
        head = Tensor("lm_head.weight", (self.vocabulary, self.dim))
        return {} if self.tied else {"head": head}


@dataclass(frozen=True)
class Cohere(Palm):
    """Command-R: norms without bias, a gate, and rotations of neighbouring features.

    Attributes
    ----------
    qk_norm
        Queries and keys are normalised head by head (Command-R+).
    logit_scale
        Multiplies the next-token logits.
    """

    qk_norm: bool = False
    logit_scale: float = 0.0625

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        return cls(
            layers=config.size("num_hidden_layers"),
            dim=dim,
            heads=heads,
            kv_heads=config.size("num_key_value_heads", heads),
            head_dim=config.size("head_dim", max(dim // heads, 1)),
            vocabulary=config.size("vocab_size"),
            context=config.size("max_position_embeddings", 8192),
            hidden=config.size("intermediate_size"),
            rope=replace(config.rope(500_000.0), interleaved=True),
            eps=config.number("layer_norm_eps", 1e-5),
            activation=config.word("hidden_act", "silu", ACTIVATIONS),
            bias=config.flag("attention_bias", False),
            tied=config.flag("tie_word_embeddings", True),
            qk_norm=config.flag("use_qk_norm", False),
            logit_scale=config.number("logit_scale", 0.0625),
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        return {
            "embedding": Tensor("model.embed_tokens.weight", (self.vocabulary, self.dim)),
            "norm": Tensor("model.norm.weight", (self.dim,)),
            "layers": [self._layer(f"model.layers.{i}.") for i in range(self.layers)],
            **self._head(),
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner, outer = self.heads * self.head_dim, self.kv_heads * self.head_dim
        maps = {
            "q": ("self_attn.q_proj", inner, self.dim, self.bias),
            "k": ("self_attn.k_proj", outer, self.dim, self.bias),
            "v": ("self_attn.v_proj", outer, self.dim, self.bias),
            "out": ("self_attn.o_proj", self.dim, inner, self.bias),
            "gate": ("mlp.gate_proj", self.hidden, self.dim, False),
            "up": ("mlp.up_proj", self.hidden, self.dim, False),
            "down": ("mlp.down_proj", self.dim, self.hidden, False),
        }
        tensors = {"norm": Tensor(f"{at}input_layernorm.weight", (self.dim,)), **_maps(at, maps)}
        if self.qk_norm:
            for name, heads in (("q_norm", self.heads), ("k_norm", self.kv_heads)):
                tensors[name] = Tensor(f"{at}self_attn.{name}.weight", (heads, self.head_dim))
        return tensors

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, then make queries, keys and values."""
        y = self._norm(params, "norm", x)
        query = split_heads(linear(params, "q", y), self.heads)
        key = split_heads(linear(params, "k", y), self.kv_heads)
        value = split_heads(linear(params, "v", y), self.kv_heads)
        if self.qk_norm:
            query, key = self._norm(params, "q_norm", query), self._norm(params, "k_norm", key)
        return query, key, value

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix and scale."""
        return super().logits(params, x) * self.logit_scale


@dataclass(frozen=True)
class Falcon(Palm):
    """Falcon: norms with bias, no gate, one matrix for queries, keys and values.

    Attributes
    ----------
    two_norms
        Attention and the feed-forward part have norms of their own (Falcon-40B and 180B).
    """

    prefixes: ClassVar[tuple[str, ...]] = ("transformer.",)

    two_norms: bool = False

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from ``config.json``."""
        dim, heads = config.size("hidden_size"), config.size("num_attention_heads")
        grouped = config.flag("new_decoder_architecture", False)
        if config.flag("alibi", False) or not (grouped or config.flag("parallel_attn", True)):
            raise CheckpointError(
                f"{config.where}: alibi is {config.values.get('alibi')} and parallel_attn "
                f"{config.values.get('parallel_attn')}, expected a Falcon with rotary positions "
                "and parallel blocks (7B, 11B, 40B or 180B). Falcon-RW is not supported."
            )
        kv_heads = heads
        if grouped:
            kv_heads = config.size("num_kv_heads", heads)
        elif config.flag("multi_query", True):
            kv_heads = 1
        return cls(
            layers=config.size("num_hidden_layers"),
            dim=dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=max(dim // heads, 1),
            vocabulary=config.size("vocab_size"),
            context=config.size("max_position_embeddings", 2048),
            hidden=config.size("ffn_hidden_size", 4 * dim),
            rope=config.rope(),
            eps=config.number("layer_norm_epsilon", 1e-5),
            activation=config.word("activation", "gelu", ACTIVATIONS),
            bias=config.flag("bias", False),
            tied=config.flag("tie_word_embeddings", True),
            two_norms=grouped and config.size("num_ln_in_parallel_attn", 2) == 2,
        )

    def parameters(self) -> dict[str, Any]:
        """Name the tensors of a checkpoint."""
        return {
            "embedding": Tensor("transformer.word_embeddings.weight", (self.vocabulary, self.dim)),
            "norm": Tensor("transformer.ln_f.weight", (self.dim,)),
            "norm_bias": Tensor("transformer.ln_f.bias", (self.dim,)),
            "layers": [self._layer(f"transformer.h.{i}.") for i in range(self.layers)],
            **self._head(),
        }

    def _layer(self, at: str) -> dict[str, Tensor]:
        inner, outer = self.heads * self.head_dim, self.kv_heads * self.head_dim
        maps = {
            "qkv": ("self_attention.query_key_value", inner + 2 * outer, self.dim, self.bias),
            "out": ("self_attention.dense", self.dim, inner, self.bias),
            "up": ("mlp.dense_h_to_4h", self.hidden, self.dim, self.bias),
            "down": ("mlp.dense_4h_to_h", self.dim, self.hidden, self.bias),
        }
        tensors = _maps(at, maps)
        norms = {"norm": "ln_attn", "hidden_norm": "ln_mlp"}
        for name, stored in (norms if self.two_norms else {"norm": "input_layernorm"}).items():
            tensors[name] = Tensor(f"{at}{stored}.weight", (self.dim,))
            tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (self.dim,))
        return tensors

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Normalise, then make queries, keys and values at once.

        Each K/V head comes with its group: the query heads, the key, the value.
        """
        y = linear(params, "qkv", self._norm(params, "norm", x))
        xp = backend_of(y).xp
        group = self.heads // self.kv_heads
        y = xp.reshape(y, (*y.shape[:2], self.kv_heads, group + 2, self.head_dim))
        query = xp.reshape(y[:, :, :, :group, :], (*y.shape[:2], self.heads, self.head_dim))
        return query, y[:, :, :, group, :], y[:, :, :, group + 1, :]


def _maps(at: str, maps: dict[str, tuple[str, int, int, bool]]) -> dict[str, Tensor]:
    """Name the weights, and biases where they are, of linear maps."""
    tensors = {}
    for name, (stored, rows, columns, biased) in maps.items():
        tensors[name] = Tensor(f"{at}{stored}.weight", (rows, columns))
        if biased:
            tensors[f"{name}_bias"] = Tensor(f"{at}{stored}.bias", (rows,))
    return tensors
