"""Tables that are kept on the device for the next call."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from attendre_torch.constants import constant_in_traces

__all__ = ["table", "taken_as_inputs"]

#: Where a table may be a constant of any program: nothing has to be copied to the device.
_NOTHING_TO_COPY: tuple[str, ...] = ("cpu",)
#: Not empty while a program is traced that takes tables as inputs. Dynamo can trace a list that is
#: as it was at the end.
_TRACED: list[bool] = []


@contextmanager
def taken_as_inputs() -> Iterator[None]:
    """Let a program that is traced in this block take its tables as inputs.

    Otherwise a table is a constant of the program, and PyTorch copies it to an accelerator in every
    call. The program must be made for fixed shapes and for one layer: settings and sizes that a
    table depends on are not checked again.
    """
    _TRACED.append(True)
    try:
        yield
    finally:
        _TRACED.pop()


def table(like: Tensor, make: Callable[..., Any], *spec: Hashable, dtype: torch.dtype) -> Tensor:
    """Make a table once for each device and dtype.

    While a function is traced or transformed, nothing is kept but what `taken_as_inputs` asks for:
    such a tensor may be a wrapper that must not outlive the function.
    """
    if torch.compiler.is_compiling():
        if not _TRACED or like.device.type in _NOTHING_TO_COPY or torch.compiler.is_exporting():
            return NotImplemented
        name = _keep(make, dtype, like.device, len(spec), *_taken_apart(spec))
        found: Tensor = getattr(_KEPT, name)
        return found
    if type(like) not in (Tensor, torch.nn.Parameter):
        return NotImplemented
    if torch._C._are_functorch_transforms_active():
        return NotImplemented
    return _kept(make, spec, dtype, like.device)


class _Kept:
    """Holds the tables of programs by name; a program takes its attributes as inputs."""


_KEPT = _Kept()


def _taken_apart(spec: Sequence[Any]) -> list[Any]:
    """Replace a dataclass by its class, the number of its fields, and these.

    The program may have made it itself, and such an object does not exist while it is traced.
    """
    found: list[Any] = []
    for x in spec:
        if is_dataclass(x):
            fields = [getattr(x, name) for name in x.__dataclass_fields__]
            found += [type(x), len(fields), *_taken_apart(fields)]
        else:
            found.append(x)
    return found


def _put_together(parts: Iterator[Any]) -> Any:
    """Return the first object of what was taken apart."""
    first = next(parts)
    if isinstance(first, type):
        return first(*(_put_together(parts) for _ in range(next(parts))))
    return first


@constant_in_traces
def _keep(
    make: Callable[..., Any], dtype: torch.dtype, device: torch.device, count: int, *parts: Any
) -> str:
    """Keep a table; return the name under which the program that is being traced finds it."""
    rest = iter(parts)
    kept = _kept(make, tuple(_put_together(rest) for _ in range(count)), dtype, device)
    name = f"table_{id(kept)}"
    setattr(_KEPT, name, kept)
    return name


@lru_cache(maxsize=256)
def _kept(
    make: Callable[..., Any], spec: tuple[Hashable, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False):  # it may be part of a gradient later
        return torch.asarray(make(*spec), dtype=dtype, device=device)
