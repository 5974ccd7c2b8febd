"""Nested tuples, lists and dicts of arrays: the only containers a state is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["tree_leaves", "tree_map", "tree_of"]


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``function`` to every leaf, keeping the nesting.

    Parameters
    ----------
    function
        Called with one leaf of each tree.
    tree, *rest
        Nested tuples (named ones too), lists and dicts; ``None`` holds no leaf. All of the
        same structure.

    Examples
    --------
    >>> tree_map(lambda x: x + 1, {"a": (1, 2)})
    {'a': (2, 3)}
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        return {name: tree_map(function, tree[name], *(r[name] for r in rest)) for name in tree}
    if isinstance(tree, (tuple, list)):
        parts = [tree_map(function, *leaves) for leaves in zip(tree, *rest, strict=True)]
        if hasattr(tree, "_fields"):
            return type(tree)(*parts)
        return type(tree)(parts)
    return function(tree, *rest)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves from left to right.

    Examples
    --------
    >>> tree_leaves({"a": (1, [2, None])})
    [1, 2]
    """
    if tree is None:
        return []
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if not isinstance(tree, (tuple, list)):
        return [tree]
    leaves: list[Any] = []
    for part in tree:
        if isinstance(part, (tuple, list, dict)):
            leaves += tree_leaves(part)
        elif part is not None:
            leaves.append(part)
    return leaves


def tree_of(like: Any, leaves: Sequence[Any]) -> Any:
    """Arrange leaves, from left to right, as another tree is nested.

    Examples
    --------
    >>> tree_of({"a": (1, [2, None])}, "xy")
    {'a': ('x', ['y', None])}
    """
    rest = iter(leaves)
    return _nested(like, rest)


def _nested(like: Any, rest: Iterator[Any]) -> Any:
    if like is None:
        return None
    if isinstance(like, dict):
        return {name: _nested(part, rest) for name, part in like.items()}
    if isinstance(like, (tuple, list)):
        parts = [
            None if part is None
            else _nested(part, rest) if isinstance(part, (tuple, list, dict))
            else next(rest)
            for part in like
        ]  # fmt: skip
        return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
    return next(rest)
