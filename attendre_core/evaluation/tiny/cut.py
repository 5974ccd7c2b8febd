"""Run successive layers of a model on their own, so that training can use a layer's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from attendre_core.backend import Array
from attendre_core.positions.base import Encoding
from attendre_core.zoo.architectures.base import Cross, Params, Part

__all__ = ["Layers", "layers_of"]


@dataclass(frozen=True)
class Layers(Part):
    """Successive layers of a part, as a part of their own.

    The parameters come from `layer_params`. Layers that do not start at the bottom read
    ``params["input"]`` instead of tokens; layers that do not end at the top return their output
    without the final norm.

    Attributes
    ----------
    whole
        The part that the layers belong to.
    start
        Number of the first layer in the whole part.
    """

    whole: Part
    start: int

    @property
    def causal(self) -> bool:
        """As in the whole part."""
        return self.whole.causal

    @property
    def scale(self) -> float | None:
        """As in the whole part."""
        return self.whole.scale

    def window(self, layer: int) -> int | None:
        """Return the window of a layer, counted from ``start``."""
        return self.whole.window(self.start + layer)

    def encoding(self, layer: int) -> Encoding:
        """Return the position scheme of a layer, counted from ``start``."""
        return self.whole.encoding(self.start + layer)

    def encoding_params(self, params: Params) -> Any:
        """As in the whole part."""
        return self.whole.encoding_params(params)

    def embed(self, params: Params, tokens: Array, position: Array) -> Array:
        """Return the embeddings of the tokens, or the output of the layers below."""
        if self.start:
            return params["input"]
        return self.whole.embed(params, tokens, position)

    def project(self, params: Params, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """As in the whole part."""
        return self.whole.project(params, x, position)

    def finish(
        self, params: Params, attended: Array, carry: Array, cross: Cross | None = None
    ) -> Array:
        """As in the whole part."""
        return self.whole.finish(params, attended, carry, cross)

    def final(self, params: Params, x: Array) -> Array:
        """Apply the final norm if these are the top layers."""
        return self.whole.final(params, x) if self.start + self.layers == self.whole.layers else x


def layers_of(part: Part, start: int, stop: int) -> Layers:
    """Return the layers ``start`` to ``stop - 1`` of a part."""
    return Layers(
        layers=stop - start,
        dim=part.dim,
        heads=part.heads,
        kv_heads=part.kv_heads,
        head_dim=part.head_dim,
        vocabulary=part.vocabulary,
        context=part.context,
        whole=part,
        start=start,
    )


def layer_params(params: Params, start: int, stop: int, below: Array | None = None) -> Params:
    """Return the parameters of `layers_of`; ``below`` is the output of the layers below."""
    return {**params, "layers": params["layers"][start:stop], "input": below}
