"""Apply autocast to linear maps, but not to logits and scores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

__all__ = ["with_autocast_of", "without_autocast", "working_dtype"]


def working_dtype(weight: Tensor) -> torch.dtype:
    """Return the dtype of linear maps: that of autocast if it is on, else of the parameters."""
    kind = weight.device.type
    autocast = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    if autocast and weight.dtype != torch.float64:
        working: torch.dtype = torch.get_autocast_dtype(kind)
        return working
    own: torch.dtype = weight.dtype
    return own


def without_autocast(like: Tensor) -> Any:
    """Turn autocast off, which would compute logits and scores in half precision."""
    kind = like.device.type
    if not torch.amp.is_autocast_available(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def with_autocast_of(like: Tensor) -> Callable[[], Any]:
    """Return a context that restores the current autocast inside `without_autocast`."""
    kind = like.device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return nullcontext
    dtype = torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype)
