"""Read the values of a tensor where that is free."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["numbers_of", "readable"]


def readable(tensor: Tensor) -> bool:
    """Return whether values can be read for free: in eager code on the CPU."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu"


def numbers_of(x: Tensor) -> Any:
    """Return a tensor as a NumPy array that shares its memory; None if that is impossible."""
    if not readable(x) or x.dtype in (torch.bfloat16, torch.float16):
        return None
    try:
        return x.detach().numpy()
    except RuntimeError:  # inside torch.func a tensor may have no memory of its own
        return None
