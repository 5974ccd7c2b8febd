"""Names that are imported when they are first asked for, so that importing stays fast."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["lazy_names"]


def lazy_names(
    namespace: dict[str, Any], modules: Mapping[str, tuple[str, ...]]
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a package.

    Parameters
    ----------
    namespace
        The package's ``globals()``, in which a name is kept once it was imported.
    modules
        Module to the names it defines.
    """
    home = {name: module for module, names in modules.items() for name in names}

    def __getattr__(name: str) -> Any:  # noqa: N807 - it becomes the package's own
        if name not in home:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        value = getattr(import_module(home[name]), name)
        namespace[name] = value
        return value

    return __getattr__
