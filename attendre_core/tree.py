"""Nested tuples, lists and dicts of arrays, the only containers in a state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

__all__ = ["same_nesting", "tree_leaves", "tree_map", "tree_of"]


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``function`` to every leaf, keeping the nesting.

    Parameters
    ----------
    function
        Called with one leaf of each tree.
    tree, *rest
        Nested tuples (also named ones), lists and dicts, all of the same structure; ``None`` has
        no leaves.

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


def same_nesting(one: Any, other: Any) -> None:
    """Raise ValueError unless two trees are nested alike.

    Examples
    --------
    >>> same_nesting((1, {"a": None}), (2, {"a": None}))
    """
    nested = (tuple, list, dict, type(None))
    if (isinstance(one, nested) or isinstance(other, nested)) and type(one) is not type(other):
        raise ValueError(f"{type(one).__name__} and {type(other).__name__}")
    if isinstance(one, dict):
        if one.keys() != other.keys():
            raise ValueError(f"keys {list(one)} and {list(other)}")
        one, other = tuple(one.values()), tuple(other[name] for name in one)
    if isinstance(one, (tuple, list)):
        for left, right in zip(one, other, strict=True):
            if left is None or right is None or isinstance(left, (tuple, list, dict)):
                same_nesting(left, right)


def tree_of(like: Any, leaves: Sequence[Any]) -> Any:
    """Arrange leaves, from left to right, in the structure of another tree.

    Examples
    --------
    >>> tree_of({"a": (1, [2, None])}, "xy")
    {'a': ('x', ['y', None])}
    """
    return _nested(like, iter(leaves))


def _nested(like: Any, rest: Iterator[Any]) -> Any:
    if like is None:
        return None
    if not isinstance(like, (tuple, list, dict)):
        return next(rest)
    parts: list[Any] = []
    for part in like.values() if isinstance(like, dict) else like:
        if part is None:
            parts.append(None)
        else:
            nested = isinstance(part, (tuple, list, dict))
            parts.append(_nested(part, rest) if nested else next(rest))
    if isinstance(like, dict):
        return dict(zip(like, parts, strict=True))
    return type(like)(*parts) if hasattr(like, "_fields") else type(like)(parts)
