"""The array API of PyTorch, where an accelerator fills no array with the same number twice.

There, making an array of equal numbers or a range is a launch like any other operation. Instead a
number is kept on the device and expanded, and a range is kept whole. Such an array must not be
written to. Elsewhere, and while code is traced or transformed, this is array-api-compat.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import array_api_compat.torch as _plain
import torch
from array_api_compat.torch import *  # noqa: F403
from torch import Tensor

from attendre_torch.looking import launched, launched_on

#: A name of PyTorch that is no part of the array API, and breaks whoever looks at all names here.
globals().pop("classes", None)
#: The array API gives these names to dtypes.
_NUMBERS = (builtins.bool, builtins.int, builtins.float)
_FAKE = torch._C._TorchDispatchModeKey.FAKE


def __getattr__(name: str) -> Any:
    return getattr(_plain, name)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return a range, kept on an accelerator."""
    if isinstance(device, torch.device) and launched_on(device) and _keeps():
        return _unwritten(_plain.arange, start, stop, step, dtype, device)
    return _plain.arange(start, stop, step, dtype=dtype, device=device)


def full(shape: Any, number: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a number in a shape."""
    if isinstance(device, torch.device) and launched_on(device) and _keeps():
        return _number(number, dtype, device).expand(shape)
    return _plain.full(shape, number, dtype=dtype, device=device)


def zeros_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return zeros in the shape of an array."""
    if device is None and launched(x) and _keeps(x):
        return _number(0, dtype or x.dtype, x.device).expand(x.shape)
    return _plain.zeros_like(x, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return ones in the shape of an array."""
    if device is None and launched(x) and _keeps(x):
        return _number(1, dtype or x.dtype, x.device).expand(x.shape)
    return _plain.ones_like(x, dtype=dtype, device=device)


def full_like(x: Tensor, number: Any, /, *, dtype: Any = None, device: Any = None) -> Tensor:
    """Return a number in the shape of an array."""
    if device is None and launched(x) and _keeps(x):
        return _number(number, dtype or x.dtype, x.device).expand(x.shape)
    return _plain.full_like(x, number, dtype=dtype, device=device)


def where(condition: Tensor, x: Any, y: Any, /) -> Tensor:
    """Choose; a number takes the dtype of the array beside it, and equal dtypes need no rule."""
    if type(x) is Tensor and type(y) is Tensor and x.dtype == y.dtype:
        return torch.where(condition, x, y)
    if (type(x) in _NUMBERS) != (type(y) in _NUMBERS) and launched(condition) and _keeps(condition):
        if type(x) in _NUMBERS:
            x = _number(x, y.dtype, y.device)
        else:
            y = _number(y, x.dtype, x.device)
    return _plain.where(condition, x, y)


def _keeps(x: Tensor | None = None) -> bool:
    """Return whether an array that is made now may outlive the call; see `tables`."""
    return (
        (x is None or type(x) in (Tensor, torch.nn.Parameter))
        and torch._C._get_dispatch_mode(_FAKE) is None
        and not torch._C._are_functorch_transforms_active()
    )


def _number(number: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _unwritten(torch.full, (), number, dtype, device)


def _unwritten(make: Callable[..., Tensor], *spec: Any) -> Tensor:
    """Return what is kept, or make it again if someone has written to it."""
    kept = _kept(make, *spec)
    if kept._version:
        _kept.cache_clear()
        kept = _kept(make, *spec)
    return kept


@lru_cache(maxsize=256)
def _kept(make: Callable[..., Tensor], *spec: Any) -> Tensor:
    *given, dtype, device = spec
    with torch.inference_mode(False):  # it may be part of a gradient later
        return make(*given, dtype=dtype, device=device)
