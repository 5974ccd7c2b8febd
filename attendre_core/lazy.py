"""Public names that are imported on first use, so that importing the package is fast.

A package lists its names once, in the stub beside its ``__init__.py``: type checkers read it, and
`attach` derives the rest from it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["attach"]


def attach(
    namespace: dict[str, Any], *, at_once: bool = False
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Make ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Parameters
    ----------
    namespace
        The package's ``globals()``. The public names are those that its stub imports; each is
        stored here on first use.
    at_once
        Import all names now.
    """
    stub = Path(namespace["__file__"]).with_suffix(".pyi")
    home: dict[str, str] = {}
    for node in ast.parse(stub.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            home.update({alias.asname or alias.name: node.module for alias in node.names})
    names = sorted(home)

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's own
        if name not in home:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        if home[name] == namespace["__name__"]:  # a submodule; getattr would recurse
            value = import_module(f"{home[name]}.{name}")
        else:
            value = getattr(import_module(home[name]), name)
        namespace[name] = value
        return value

    def __dir__() -> list[str]:  # noqa: N807
        return names

    if at_once:
        for name in names:
            __getattr__(name)
    return __getattr__, __dir__, names
