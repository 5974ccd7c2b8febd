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


def tree_leaves(tree: Any) -> Iterator[Any]:
    """Yield the leaves from left to right.

    Examples
    --------
    >>> list(tree_leaves({"a": (1, [2, None])}))
    [1, 2]
    """
    if tree is None:
        return
    if isinstance(tree, dict):
        for name in tree:
            yield from tree_leaves(tree[name])
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from tree_leaves(part)
    else:
        yield tree


def tree_of(like: Any, leaves: Sequence[Any]) -> Any:
    """Arrange leaves, from left to right, as another tree is nested.

    Examples
    --------
    >>> tree_of({"a": (1, [2, None])}, "xy")
    {'a': ('x', ['y', None])}
    """
    rest = iter(leaves)
    return tree_map(lambda _: next(rest), like)
