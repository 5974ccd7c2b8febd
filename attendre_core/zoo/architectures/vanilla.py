"""The first Transformer: an encoder and a decoder with sinusoidal positions and layer norms.

What it computes, whatever its checkpoints look like: `marian.py` and `ctranslate.py` name their
tensors. Norms come after each sum (as first published) or before each part::

    post-norm  x ─┬─ part ─┬─► + ─► norm          pre-norm  x ─┬─ norm ─► part ─┬─► +
                  └────────┘                                   └────────────────┘

The parts are attention, in the decoder attention across, and feed-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from attendre_core.backend import Array, backend_of
from attendre_core.memory.encoder_output import cross_attention
from attendre_core.positions.sinusoidal import SinusoidalPositions
from attendre_core.zoo.architectures.base import Cross, EncoderDecoder, Params, Part
from attendre_core.zoo.architectures.layers import (
    activate,
    embedded,
    layer_norm,
    linear,
    merged_heads,
    split_heads,
)

__all__ = ["VanillaPart", "VanillaTransformer"]


@dataclass(frozen=True)
class VanillaPart(Part):
    """An encoder or a decoder with biases everywhere.

    Attributes
    ----------
    hidden
        Width of the feed-forward part.
    reads
        Whether this is the encoder, which looks both ways.
    positions
        Added to the embedding, once that was multiplied by ``embedding_scale``.
    pre_norm
        Norms in front of each part, and one at the end of all.
    """

    hidden: int
    reads: bool
    positions: SinusoidalPositions
    embedding_scale: float
    pre_norm: bool
    activation: str = "relu"
    eps: float = 1e-5

    @property
    def causal(self) -> bool:
        """Whether this is the decoder."""
        return not self.reads

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Look the tokens up and add their positions."""
        x = embedded(params["embedding"], tokens) * self.embedding_scale
        return x + backend_of(x).xp.astype(self.positions.embed(position), x.dtype)

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Make queries, keys and values."""
        y = self._normed(params, "attention", x) if self.pre_norm else x
        query, key, value = (split_heads(linear(params, n, y), self.heads) for n in "qkv")
        return query, key, value

    def cross_project(self, params: Params, encoded: Array) -> tuple[Array, Array]:
        """Make keys and values of the encoder's output."""
        key = split_heads(linear(params, "cross_k", encoded), self.heads)
        return key, split_heads(linear(params, "cross_v", encoded), self.heads)

    def cross_query(self, params: Params, attended: Array, carry: Array) -> Array:
        """Make queries of the residual stream behind the attention."""
        x = self._attended(params, attended, carry)
        y = self._normed(params, "cross", x) if self.pre_norm else x
        return split_heads(linear(params, "cross_q", y), self.heads)

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Add attention, attention across and feed-forward part to the residual stream."""
        x = self._attended(params, attended, carry)
        if cross is not None:
            x = self._added(params, "cross", x, lambda y: self._across(params, y, cross))
        return self._added(params, "hidden", x, lambda y: self._feed_forward(params, y))

    def final(self, params: Params, x: Array) -> Array:
        """Normalise once more, if nothing else did."""
        return self._normed(params, "final", x) if self.pre_norm else x

    def _attended(self, params: Params, attended: Array, carry: Array) -> Array:
        x = carry + linear(params, "out", merged_heads(attended))
        return x if self.pre_norm else self._normed(params, "attention", x)

    def _across(self, params: Params, y: Array, cross: Cross) -> Array:
        query = split_heads(linear(params, "cross_q", y), self.heads)
        across = cross_attention(query, *cross, top_k=self.cross_top_k)
        return linear(params, "cross_out", merged_heads(across))

    def _feed_forward(self, params: Params, y: Array) -> Array:
        return linear(params, "down", activate(self.activation, linear(params, "up", y)))

    def _added(self, params: Params, name: str, x: Array, part: Callable[[Array], Array]) -> Array:
        if self.pre_norm:
            return x + part(self._normed(params, name, x))
        return self._normed(params, name, x + part(x))

    def _normed(self, params: Params, name: str, x: Array) -> Array:
        return layer_norm(params[f"{name}_norm"], params[f"{name}_norm_bias"], x, self.eps)


@dataclass(frozen=True)
class VanillaTransformer(EncoderDecoder):
    """Encoder and decoder with vocabularies of their own, or with one for both.

    Attributes
    ----------
    banned
        Token ids that the decoder must not choose.
    """

    encoder: VanillaPart
    decoder: VanillaPart
    start: int
    banned: tuple[int, ...] = ()

    def logits(self, params: Params, x: Array) -> Array:
        """Multiply with the output matrix and add the bias of each token."""
        return linear(params, "head", x)

    @property
    def never(self) -> tuple[int, ...]:
        """Token ids that the decoder must not choose."""
        return self.banned
