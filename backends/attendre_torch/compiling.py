"""Compile a layer's step, and skip the checks of what cannot have changed.

On an accelerator, steps are compiled by default: eager code launches each operation by itself, and
for most of them the launch takes longer than the work.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from types import FunctionType
from typing import Any, NamedTuple

import torch

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_torch.heads import current_group
from attendre_torch.tables import taken_as_inputs

__all__ = ["compile_steps", "compiled_step", "run_step"]

#: The devices on which steps are compiled by default.
_DEVICES = ("cuda", "xpu")
#: How many programs are made of one layer; steps of further shapes run eagerly.
_MOST_PROGRAMS = 16

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
        with taken_as_inputs():
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
            program = programs[kind] = torch.compile(
                _with_own_code(run), fullgraph=True, dynamic=False,
                backend=backend, options=_checks_of_tensors() if plain else None,
            )  # fmt: skip
        return program(state, chunk)

    return step


def _checks_of_tensors() -> dict[str, Any] | None:
    """Return options by which only tensors are checked; None, to check all, if PyTorch has none."""
    keep = getattr(torch.compiler, "keep_tensor_guards_unsafe", None)
    return None if keep is None else {"guard_filter_fn": keep}


def _with_own_code(function: Any) -> Any:
    """Copy a function together with its code.

    PyTorch caches compiled programs by a function's code, which all closures of one definition
    share: without a check of the layer, it would run the program of another layer.
    """
    code = function.__code__.replace()
    return FunctionType(code, function.__globals__, code.co_name, None, function.__closure__)


class _Choice(NamedTuple):
    """``on`` is None where the device decides."""

    on: bool | None
    backend: Any


_BY_DEVICE = _Choice(None, "inductor")
_CHOICE: ContextVar[_Choice] = ContextVar("compile_steps", default=_BY_DEVICE)
Program = Callable[..., Any] | None


@contextmanager
def compile_steps(on: bool | None, *, backend: Any = "inductor") -> Iterator[None]:
    """Choose inside a ``with`` block whether every step of a layer is one compiled graph.

    Parameters
    ----------
    on
        True compiles on every device, False on none; None, the default, on CUDA and XPU devices.
        A step that records gradients, or has been compiled for many shapes already, runs eagerly.
    backend
        The backend of ``torch.compile``.

    Notes
    -----
    It applies to this thread or task only, to `AttendreLayer.step` and to all that calls it:
    `AttendreAttention`, `Streaming` and the models of the zoo. Equal layers share a program, so a
    model of many layers is compiled about once. A program is made for fixed shapes; read chunks of
    one length. The first step of a shape takes about half a minute.

    Examples
    --------
    >>> with compile_steps(False):
    ...     pass
    """
    token = _CHOICE.set(_Choice(on, backend))
    try:
        yield
    finally:
        _CHOICE.reset(token)


def run_step(
    layer: AttendreLayer,
    step: Callable[..., Any],
    state: LayerState,
    chunk: Chunk,
    encoding_params: Any,
    policy_params: Any,
    donate: bool,
) -> Any:
    """Run a step as a compiled program, or decline; see `attendre_core.backend.Backend`."""
    if torch.compiler.is_compiling():
        return NotImplemented
    on, backend = _CHOICE.get()
    if on is False or (on is None and state.kv.key.device.type not in _DEVICES) or layer.trace:
        return NotImplemented
    arrays = (state, Chunk(*chunk), encoding_params, policy_params)
    leaves, nesting = torch.utils._pytree.tree_flatten(arrays)
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return NotImplemented
    if torch._C._functorch.maybe_current_level() is not None:
        return NotImplemented
    kind = (
        backend,
        nesting,
        tuple((x.shape, x.dtype, x.device) for x in tensors),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled(state.kv.key.device.type),
    )
    try:
        programs = _programs_of(layer, donate)
    except TypeError:  # a policy or an encoding of one's own that cannot be hashed
        return NotImplemented
    if kind not in programs:
        programs[kind] = None
        if len(programs) <= _MOST_PROGRAMS:
            programs[kind] = _program(step, donate, backend)
    program = programs[kind]
    if program is None:
        return NotImplemented
    try:
        return program(*arrays)
    except torch._dynamo.exc.TorchDynamoException as error:
        # A mistake of the caller is explained by the eager step; anything else must not stop it.
        programs[kind] = None
        warnings.warn(
            f"a step could not be compiled and runs eagerly, which is slow on an accelerator: "
            f"{str(error).splitlines()[0]}",
            RuntimeWarning,
            stacklevel=4,
        )
        return NotImplemented


@lru_cache(maxsize=256)
def _programs_of(layer: AttendreLayer, donate: bool) -> dict[tuple[Any, ...], Program]:
    """Return the programs of a layer, by what they are made for; None where compiling failed."""
    return {}


def _program(step: Callable[..., Any], donate: bool, backend: Any) -> Callable[..., Any]:
    def run(state: LayerState, chunk: Chunk, encoding_params: Any, policy_params: Any) -> Any:
        with taken_as_inputs():
            return step(state, chunk, encoding_params, policy_params, donate)

    compiled: Callable[..., Any] = torch.compile(
        _with_own_code(run), fullgraph=True, dynamic=False, backend=backend,
        options=_checks_of_tensors(),
    )  # fmt: skip
    return compiled
