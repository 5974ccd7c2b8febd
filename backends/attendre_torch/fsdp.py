"""What `fully_shard` does around ``forward``: for other methods, too, and not to scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch

from attendre_core.errors import DTypeError
from attendre_core.layer.records import LayerState

__all__ = ["check_scores", "is_sharded", "like_forward"]

F = TypeVar("F", bound=Callable[..., Any])


def is_sharded(module: Any) -> bool:
    """Whether ``fully_shard`` was applied to a module: it gives it a class with this method."""
    return hasattr(module, "set_reshard_after_forward")


def like_forward(method: F) -> F:
    """Let a method of a module run with all parameters, also after ``fully_shard``.

    FSDP gathers parameters before ``forward`` and frees them afterwards, and does the same for
    methods that are registered. This registers the method when it is called for the first time.
    ``forward`` itself calls the method without that, as ``.plain``.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_sharded(self) and name not in self.__dict__:
            from torch.distributed.fsdp import register_fsdp_forward_method

            register_fsdp_forward_method(self, name)
            return self.__dict__[name](*args, **kwargs)
        return method(self, *args, **kwargs)

    call.plain = method  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


def check_scores(where: str, state: LayerState) -> None:
    """Raise if scores have been cast to half precision, in which sums of attention get lost."""
    kind = state.kv.score.dtype
    if kind in (torch.bfloat16, torch.float16):
        raise DTypeError(
            f"{where}: the scores of the state are {str(kind).removeprefix('torch.')}, expected "
            "float32. With mixed precision, fully_shard casts everything that it hands on: use "
            "MixedPrecisionPolicy(..., cast_forward_inputs=False)."
        )
