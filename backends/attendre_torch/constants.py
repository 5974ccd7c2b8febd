"""Say which functions a trace may call once and keep the answer of, without loading Dynamo."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

__all__ = ["constant_in_traces"]

P = ParamSpec("P")
R = TypeVar("R")


def constant_in_traces(function: Callable[P, R]) -> Callable[P, R]:
    """Do what ``torch.compiler.assume_constant_result`` does.

    That one sets this attribute and nothing else, but it imports Dynamo first, which takes longer
    than importing PyTorch, and which nobody needs who compiles nothing.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
