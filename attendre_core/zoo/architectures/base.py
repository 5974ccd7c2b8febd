"""What an architecture must define.

An architecture is a frozen dataclass of plain numbers. It says which tensors a checkpoint holds
(`parameters`) and computes with them: every method is a pure function of parameters and arrays.
Reading chunk by chunk, memories, decoding and saving are the same for all and live elsewhere.

::

    tokens ─► embed ─► │ project ─► attention over a memory ─► finish │ ─► ... ─► final ─► logits
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from attendre_core.backend import Array
from attendre_core.errors import CheckpointError, ConfigError
from attendre_core.positions.base import Encoding
from attendre_core.zoo.config import RawConfig

if TYPE_CHECKING:
    from attendre_core.zoo.architectures.heads import Head, Kind

__all__ = ["Architecture", "Cross", "EncoderDecoder", "Part", "Tensor"]

Params = dict[str, Any]


@dataclass(frozen=True)
class Tensor:
    """Where a checkpoint keeps one parameter.

    Attributes
    ----------
    name
        Name in the checkpoint.
    shape
        Of the parameter, after ``rows`` and ``transposed``.
    rows
        (start, stop): the part of a fused tensor along its first axis; None = all of it.
    transposed
        The checkpoint holds it as (in, out).
    also
        Names under which some checkpoints hold it instead, tried in this order: a table that
        several places share is often stored only once.
    """

    name: str
    shape: tuple[int, ...]
    rows: tuple[int, int] | None = None
    transposed: bool = False
    also: tuple[str, ...] = ()


#: Keys and values of the encoder's output for one decoder layer, and which of them are real:
#: (batch, slots, kv_heads, dim) twice, and (batch, slots).
Cross = tuple[Array, Array, Array]


@dataclass(frozen=True)
class Part:
    """A stack of transformer layers with its embedding and final norm.

    Attributes
    ----------
    layers, dim, heads, kv_heads, head_dim
        Number of layers, width of the residual stream, query heads, K/V heads, width of a head.
    vocabulary
        Rows of the embedding.
    context
        Longest input it was trained on; None if it does not matter.
    cross_top_k
        A decoder attends across to so many outputs of the encoder; None = all.
    types
        How many types of tokens it tells apart; 1 = none.
    """

    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int | None
    cross_top_k: int | None = field(default=None, kw_only=True, repr=False)
    types: int = field(default=1, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise CheckpointError(
                f"{type(self).__name__}: {self.heads} query heads and {self.kv_heads} K/V heads, "
                "expected a whole number of query heads for each K/V head. Check that config.json "
                "belongs to this checkpoint."
            )

    @property
    def causal(self) -> bool:
        """Whether positions attend only to themselves and earlier ones."""
        return True

    @property
    def scale(self) -> float | None:
        """Factor of the logits; None = 1/sqrt(head_dim)."""
        return None

    def window(self, layer: int) -> int | None:
        """Return how far a layer attends to either side, counting its own position; None = all."""
        return None

    def encoding(self, layer: int) -> Encoding:
        """Return the position scheme of a layer, without its window."""
        return Encoding()

    def encoding_params(self, params: Params) -> Any:
        """Return the learned arrays of the position scheme, from a layer's parameters."""
        return None

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Return the input of the first layer, (batch, seq, dim).

        A part with several ``types`` takes those of the tokens, (batch, seq), as a fourth
        argument; without it all are of type 0.
        """
        raise NotImplementedError

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value, (batch, seq, heads, head_dim), of a layer's input."""
        raise NotImplementedError

    def cross_project(self, params: Params, encoded: Array) -> tuple[Array, Array]:
        """Return keys and values of the encoder's output for a decoder layer."""
        raise NotImplementedError

    def cross_query(self, params: Params, attended: Array, carry: Array) -> Array:
        """Return the queries of a decoder layer's attention across, from what `finish` takes."""
        raise NotImplementedError

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """Return the output of a layer from its attention output and its input ``carry``."""
        raise NotImplementedError

    def final(self, params: Params, x: Array) -> Array:
        """Return the hidden states that leave the stack."""
        raise NotImplementedError


class Architecture:
    """Base of all architectures.

    A decoder or an encoder is an `Architecture` and a `Part` at once; an `EncoderDecoder` has
    two parts.

    Attributes
    ----------
    kind
        ``"decoder"``, ``"encoder"`` or ``"encoder-decoder"``.
    prefixes
        Prefixes that a checkpoint may add to, or leave out of, the names of its tensors.
    """

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "decoder"
    prefixes: ClassVar[tuple[str, ...]] = ("model.",)

    @classmethod
    def from_config(cls, config: RawConfig) -> Self:
        """Read the sizes from a checkpoint's configuration."""
        raise NotImplementedError

    def parameters(self) -> dict[str, Any]:
        """Return nested dicts and lists of `Tensor`: ``"layers"`` holds one dict per layer."""
        raise NotImplementedError

    def logits(self, params: Params, x: Array) -> Array:
        """Return next-token logits, (batch, seq, vocabulary), of final hidden states."""
        if self.kind == "encoder":
            raise ConfigError(
                "logits: an encoder has no next token. Use encode for its hidden states."
            )
        raise NotImplementedError

    def head(self, config: RawConfig, kind: Kind, labels: tuple[str, ...]) -> Head | None:
        """Return its head of a kind; None if it has no such head.

        Parameters
        ----------
        labels
            What the logits are of.
        """
        return None

    @property
    def end(self) -> tuple[int, ...]:
        """Token ids that end a text, if the configuration names none."""
        return ()


class EncoderDecoder(Architecture):
    """An architecture of two parts; parameters are ``{"encoder": ..., "decoder": ...}``.

    Attributes
    ----------
    encoder
        The part that reads.
    decoder
        The part that writes, with cross-attention to what was read.
    start
        The token with which the decoder starts.
    """

    kind: ClassVar[Literal["decoder", "encoder", "encoder-decoder"]] = "encoder-decoder"

    encoder: Part
    decoder: Part
    start: int

    @property
    def never(self) -> tuple[int, ...]:
        """Token ids that the decoder must not choose."""
        return ()


#: Model types by the names that configurations use.
Registry = Mapping[str, type[Architecture]]
