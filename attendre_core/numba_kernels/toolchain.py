"""Compiling with Numba, and the one instruction that Numba does not provide."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

__all__ = ["compiled", "lowest_bit"]

F = TypeVar("F", bound=Callable[..., Any])


def compiled(*, reorder: bool = False) -> Callable[[F], F]:
    """Compile a function on its first call and cache the code on disk where possible.

    With ``reorder``, sums may be reassociated, so that they can be vectorised; infinity and NaN
    are still handled by the rules.
    """
    options = {
        "nogil": True,
        "error_model": "numpy",
        "fastmath": {"reassoc", "contract", "nsz"} if reorder else False,
    }

    def decorate(function: F) -> F:
        try:
            result: F = njit(cache=True, **options)(function)
        except RuntimeError:  # no folder for the cache: compile once per process
            result = njit(**options)(function)
        return result

    return decorate


def _lowest_bit(context: Any, word: Any) -> Any:
    """Return the index of the lowest set bit of a uint64, which must not be zero."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), code


lowest_bit = intrinsic(_lowest_bit)
