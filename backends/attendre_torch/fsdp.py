"""Methods that `fully_shard` treats like ``forward``: parameters are gathered before they run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

__all__ = ["like_forward"]

F = TypeVar("F", bound=Callable[..., Any])


def like_forward(method: F) -> F:
    """Let a method of a module run with all parameters, also after ``fully_shard``.

    FSDP gathers parameters before ``forward`` and frees them afterwards, and does the same for
    methods that are registered. This registers the method when it is called for the first time.
    """
    name = method.__name__

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        # fully_shard changes the class of a module to one that has this method.
        if hasattr(self, "set_reshard_after_forward") and name not in self.__dict__:
            from torch.distributed.fsdp import register_fsdp_forward_method

            register_fsdp_forward_method(self, name)
            return self.__dict__[name](*args, **kwargs)
        return method(self, *args, **kwargs)

    return call  # type: ignore[return-value]
