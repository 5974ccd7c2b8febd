"""Compile a layer's step, and skip the checks of what cannot have changed."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_torch.heads import current_group

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
    all its settings with those it was compiled for. Next to the time of a step without attention,
    that is about a third. A layer is frozen, so this checks only what can change: shapes, dtypes,
    devices, which fields of the chunk are None, and whether gradients are recorded.

    Parameters
    ----------
    layer
        The layer whose step is compiled.
    donate
        States that are passed in must not be used again: their slots are overwritten if no
        gradient is recorded.
    encoding_params
        Learned arrays of the encoding.
    backend
        The backend of ``torch.compile``.

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
        kind = (
            *(field is None for field in chunk),
            state.queue is None,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.is_autocast_enabled(chunk.query.device.type),
            current_group(),
        )
        program = programs.get(kind)
        if program is None:
            # The structure of nested metadata may change, which the key above does not include.
            plain = chunk.metadata is None and state.kv.aux is None
            options = {"guard_filter_fn": torch.compiler.keep_tensor_guards_unsafe}
            program = programs[kind] = torch.compile(
                _with_own_code(run), fullgraph=True, dynamic=False,
                backend=backend, options=options if plain else None,
            )  # fmt: skip
        return program(state, chunk)

    return step


def _with_own_code(function: Any) -> Any:
    """Copy a function together with its code.

    PyTorch caches compiled programs by a function's code, which all closures of one definition
    share: without a check of the layer, it would run the program of another layer.
    """
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)
