"""The layers of a model as blocks of a `Stack`, compiled where that is faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attendre_core.backend import Array, backend
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.stack import Stack
from attendre_core.zoo.architectures.base import Cross, Params, Part

__all__ = [
    "ModelBlock",
    "blocks_of",
    "compiled",
    "compiling",
    "crosses_of",
    "ends_of",
    "model_stack",
    "runs_eagerly",
]


@dataclass(frozen=True, eq=False)
class ModelBlock:
    """One layer of a part with its parameters: what `Stack` calls a block.

    Attributes
    ----------
    cross
        Keys and values of the encoder's output, for a decoder layer.
    """

    part: Part
    params: Params
    cross: Cross | None = None

    @property
    def encoding_params(self) -> Any:
        """Learned arrays of the position scheme."""
        return self.part.encoding_params(self.params)

    def project(self, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value."""
        return self.part.project(self.params, x, position)

    def finish(self, attended: Array, carry: Array) -> Array:
        """Return the output of the layer."""
        return self.part.finish(self.params, attended, carry, self.cross)


def blocks_of(
    part: Part, params: Params, crosses: list[Cross] | None = None
) -> tuple[ModelBlock, ...]:
    """Return the blocks of all layers."""
    layers = params["layers"]
    each = [None] * len(layers) if crosses is None else crosses
    return tuple(ModelBlock(part, p, c) for p, c in zip(layers, each, strict=True))


def crosses_of(part: Part, params: Params, encoded: Array, valid: Array) -> list[Cross]:
    """Project the encoder's output, (batch, n, dim), once for every layer of a decoder."""
    return [(*part.cross_project(layer, encoded), valid) for layer in params["layers"]]


def model_stack(layers: tuple[AttendreLayer, ...], library: str) -> Stack:
    """Return a stack for the blocks of a model on one backend."""
    return Stack(layers) if runs_eagerly(library) else Stack(layers, compiling(library))


def runs_eagerly(library: str) -> bool:
    """Whether models run operation by operation, on arrays that may be written to in place."""
    capabilities = backend(library).capabilities
    return "compile" not in capabilities or "eager" in capabilities


def compiled(
    library: str, function: Callable[..., Any], donate: bool = False
) -> Callable[..., Any]:
    """Compile a function of arrays, unless the library runs models eagerly."""
    if runs_eagerly(library):
        return function
    return backend(library).compile(function, donate=(0,) if donate else ())


@lru_cache(maxsize=64)
def ends_of(library: str, part: Part) -> tuple[Callable[..., Array], Callable[..., Array]]:
    """Return what comes before the first layer and after the last, compiled if that pays.

    These are ``embed(params, tokens, position)`` and ``final(params, x)`` of the part.
    """
    return compiled(library, part.embed), compiled(library, part.final)


@lru_cache(maxsize=16)
def compiling(library: str) -> Callable[..., Any]:
    """Return a ``run_layer`` for `Stack` that compiles one program for equal layers.

    A layer whose memory goes on outside of the device is run operation by operation.
    """

    def run(
        function: Callable[..., Any],
        layer: AttendreLayer,
        block: ModelBlock,
        state: Any,
        *arrays: Any,
        **settings: Any,
    ) -> Any:
        if getattr(layer.kv_memory, "outside", None):  # it leaves the device
            return function(layer, block, state, *arrays, **settings)
        program = _program(library, function, layer, block.part, tuple(settings.items()))
        return program(state, block.params, block.cross, *arrays)

    return run


@lru_cache(maxsize=512)
def _program(
    library: str,
    function: Callable[..., Any],
    layer: AttendreLayer,
    part: Part,
    settings: tuple[tuple[str, Any], ...],
) -> Callable[..., Any]:
    options = dict(settings)

    def run(state: Any, params: Params, cross: Cross | None, *arrays: Any) -> Any:
        return function(layer, ModelBlock(part, params, cross), state, *arrays, **options)

    return compiled(library, run, donate=options.get("donate", False))
