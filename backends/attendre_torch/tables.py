"""Tables that are kept on the device for the next call."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

__all__ = ["table"]


def table(like: Tensor, make: Callable[..., Any], *spec: Hashable, dtype: torch.dtype) -> Tensor:
    """Make a table once for each device and dtype, in eager code.

    Nothing is kept while a function is traced or transformed: such a tensor may be a wrapper that
    must not outlive the function.
    """
    if torch.compiler.is_compiling() or type(like) not in (Tensor, torch.nn.Parameter):
        return NotImplemented
    if torch._C._are_functorch_transforms_active():
        return NotImplemented
    return _kept(make, spec, dtype, like.device)


@lru_cache(maxsize=256)
def _kept(
    make: Callable[..., Any], spec: tuple[Hashable, ...], dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False):  # it may be part of a gradient later
        return torch.asarray(make(*spec), dtype=dtype, device=device)
