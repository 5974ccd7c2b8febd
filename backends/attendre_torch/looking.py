"""Look at the numbers of a tensor where that costs nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["numbers_of", "readable"]


def readable(tensor: Tensor) -> bool:
    """Whether looking at values costs nothing: eager code on the CPU."""
    return not torch.compiler.is_compiling() and tensor.device.type == "cpu"


def numbers_of(x: Tensor) -> Any:
    """Return the numbers of a tensor as NumPy sees them; None where there are none to be read."""
    if not readable(x) or x.dtype in (torch.bfloat16, torch.float16):
        return None
    try:
        return x.detach().numpy()
    except RuntimeError:  # inside torch.func a tensor may have no memory of its own
        return None
