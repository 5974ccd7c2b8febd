"""Read the values of a tensor where that is free, and know where every operation is a launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_on_a_device", "launched", "numbers_of", "readable"]

_ON_A_DEVICE: ContextVar[bool] = ContextVar("as_on_a_device", default=False)


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Treat the CPU like an accelerator inside a ``with`` block.

    No value is read, and the kernels with few launches run, so they can be tested anywhere.
    """
    token = _ON_A_DEVICE.set(True)
    try:
        yield
    finally:
        _ON_A_DEVICE.reset(token)


def launched(tensor: Tensor) -> bool:
    """Return whether each operation is a launch of its own: in eager code on an accelerator."""
    if torch.compiler.is_compiling():
        return False
    return tensor.device.type != "cpu" or _ON_A_DEVICE.get()


def readable(tensor: Tensor) -> bool:
    """Return whether values can be read for free: in eager code on the CPU."""
    return not torch.compiler.is_compiling() and not launched(tensor)


def numbers_of(x: Tensor) -> Any:
    """Return a tensor as a NumPy array that shares its memory; None if that is impossible."""
    if not readable(x) or x.dtype in (torch.bfloat16, torch.float16):
        return None
    try:
        return x.detach().numpy()
    except RuntimeError:  # inside torch.func a tensor may have no memory of its own
        return None
