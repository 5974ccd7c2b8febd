"""PyTorch's transforms of functions, named as in `attendre_core.backend.Backend`."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attendre_core.tree import tree_leaves, tree_map

__all__ = ["exported", "transforms"]


class _Flat(torch.nn.Module):  # type: ignore[misc]
    """A function of nested tensors as a module that takes and returns flat tensors."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        super().__init__()
        self.function, self.arguments = function, arguments

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Nest the tensors, call the function, and flatten its result."""
        given = iter(tensors)
        result = self.function(*tree_map(lambda _: next(given), self.arguments))
        return tuple(tree_leaves(result))


def exported(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Export a function for these arguments, write it out, read it back and return it.

    The file contains a function of flat tensors; their nesting is not stored.

    Examples
    --------
    >>> exported(lambda x: (x * 2,), torch.ones(3))(torch.arange(3.0))[0].tolist()
    [0.0, 2.0, 4.0]
    """
    nested = function(*arguments)
    file = io.BytesIO()
    program = torch.export.export(_Flat(function, arguments), tuple(tree_leaves(arguments)))
    torch.export.save(program, file)
    file.seek(0)
    read = torch.export.load(file).module()

    def call(*arguments: Any) -> Any:
        tensors = iter(read(*tree_leaves(arguments)))
        return tree_map(lambda _: next(tensors), nested)

    return call


def transforms() -> dict[str, Callable[..., Any]]:
    """Return the transforms of pure functions that PyTorch has."""
    return {"export": exported, "grad": torch.func.grad}
