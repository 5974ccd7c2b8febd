"""Compile a layer's step once, and call it without asking again what cannot have changed."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState

__all__ = ["compiled_step"]

Step = Callable[[LayerState, Chunk], tuple[LayerState, LayerOutput]]


def compiled_step(
    layer: AttendreLayer,
    *,
    donate: bool = True,
    encoding_params: Any = None,
    backend: str = "inductor",
) -> Step:
    """Compile `AttendreLayer.step` into one graph.

    ``torch.compile(layer.step)`` works as well, but before every call it compares the layer and
    all its settings with those it was compiled for, which takes as long as a third of the rest of
    a step beside its attention. A layer is frozen, so this looks only at what can change: shapes,
    dtypes, devices, which fields of the chunk are there, and whether gradients are recorded.

    Parameters
    ----------
    layer
        Compiled as it is.
    donate
        States that go in are used up: their slots are overwritten where no gradient is recorded.
    encoding_params
        Learned arrays of the encoding.
    backend
        Of ``torch.compile``.

    Returns
    -------
    callable
        ``step(state, chunk)``; the first call compiles, which takes about half a minute and needs
        a C++ compiler.

    Examples
    --------
    >>> import attendre_core as at
    >>> step = compiled_step(at.AttendreLayer(at.KeyValueMemory(8)))
    >>> callable(step)
    True
    """
    programs: dict[tuple[Any, ...], Step] = {}

    def run(state: LayerState, chunk: Chunk) -> tuple[LayerState, LayerOutput]:
        return layer.step(state, chunk, encoding_params=encoding_params, donate=donate)

    def step(state: LayerState, chunk: Chunk) -> tuple[LayerState, LayerOutput]:
        chunk = Chunk(*chunk)
        found = (
            *(field is None for field in chunk),
            state.queue is None,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(chunk.query.device.type),
        )
        program = programs.get(found)
        if program is None:
            # Nested metadata may change in ways that the flags above do not show.
            plain = chunk.metadata is None and state.kv.aux is None
            options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
            program = programs[found] = torch.compile(
                _with_own_code(run), fullgraph=True, dynamic=False,
                backend=backend, options=options if plain else None,
            )  # fmt: skip
        return program(state, chunk)

    return step


def _with_own_code(function: Any) -> Any:
    """Copy a function together with its code.

    PyTorch keeps compiled programs by the code of a function, which closures of one definition
    share: without asking for the layer it would take the program of another one.
    """
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)
