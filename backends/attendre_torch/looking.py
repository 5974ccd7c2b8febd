"""Read the values of a tensor where that is free, and know where every operation is a launch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_on_a_device", "launched", "launched_on", "numbers_of", "readable"]


_PRETENDED: ContextVar[bool] = ContextVar("as_on_a_device", default=False)
#: How many blocks of all threads and tasks pretend now. Every kernel asks, and mostly none does: a
#: number is looked at without a call.
_BLOCKS = 0
_COUNTING = Lock()


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """Treat the CPU like an accelerator inside a ``with`` block.

    No value is read, and the kernels with few launches run, so they can be tested anywhere. It
    applies to this thread or task only.
    """
    token = _PRETENDED.set(True)
    _count(1)
    try:
        yield
    finally:
        _count(-1)
        _PRETENDED.reset(token)


def _count(blocks: int) -> None:
    global _BLOCKS
    with _COUNTING:
        _BLOCKS += blocks


# Compilers can trace the question whether they run, but no context variable: it is asked behind.
def launched(tensor: Tensor) -> bool:
    """Return whether each operation is a launch of its own: in eager code on an accelerator."""
    if not _BLOCKS and tensor.device.type == "cpu":
        return False
    return launched_on(tensor.device)


def launched_on(device: torch.device) -> bool:
    """Return the same for a device."""
    if device.type == "cpu" and not _BLOCKS:
        return False
    return not torch.compiler.is_compiling() and (device.type != "cpu" or _PRETENDED.get())


def readable(tensor: Tensor) -> bool:
    """Return whether values can be read for free: in eager code on the CPU."""
    if torch.compiler.is_compiling():
        return False
    return tensor.device.type == "cpu" and not (_BLOCKS and _PRETENDED.get())


def numbers_of(x: Tensor) -> Any:
    """Return a tensor as a NumPy array that shares its memory; None if that is impossible."""
    if not readable(x) or x.dtype in (torch.bfloat16, torch.float16):
        return None
    try:
        return x.detach().numpy()
    except RuntimeError:  # inside torch.func a tensor may have no memory of its own
        return None
