"""Where the code of a documented object is: links from the reference to sources, and back."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sphinx.errors import PycodeError
from sphinx.ext.autodoc.mock import mock
from sphinx.pycode import ModuleAnalyzer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
_BACK = re.compile(r'(class="viewcode-back" href="(?:\.\./)*)([\w/]+)\.html#([\w.]+)"')


def find_module(app: Sphinx, module: str, path: str) -> str | None:
    """Say where the source of a documented object is, also without the frameworks."""
    with mock(app.config.autodoc_mock_imports):
        try:
            found: Any = importlib.import_module(module)
            for part in path.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError):
            return None
    place = getattr(found, "__module__", None)
    return place if isinstance(place, str) else None


def find_source(app: Sphinx, module: str) -> tuple[str, dict[str, tuple[str, int, int]]] | None:
    """Read the source of a module of this project without importing it."""
    for root in (ROOT, ROOT / "backends"):
        for end in (".py", "/__init__.py"):
            file = root / (module.replace(".", "/") + end)
            if file.exists():
                analyzer = ModuleAnalyzer.for_file(str(file), module)
                try:
                    tags = analyzer.find_tags()
                except PycodeError:
                    return None
                return analyzer.code, tags
    return None


def lead_back(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Point a source's links to where its objects are documented.

    An object may be documented as one of a package that hands it on, and Sphinx takes it that all
    objects of a file are documented as those of one.
    """
    if not page.startswith("_modules/") or "body" not in context:
        return
    places: dict[tuple[str, str], str] = {}
    for name, entry in app.env.domaindata["py"]["objects"].items():
        for count in (1, 2):  # Class, Class.method
            places.setdefault((entry.docname, ".".join(name.split(".")[-count:])), entry.node_id)

    def found(match: re.Match[str]) -> str:
        start, document, name = match.groups()
        ends = (".".join(name.split(".")[-count:]) for count in (2, 1))
        place = next((places[document, end] for end in ends if (document, end) in places), "")
        return f'{start}{document}.html#{place}"'

    context["body"] = _BACK.sub(found, context["body"])


def setup(app: Sphinx) -> None:
    """Connect to Sphinx."""
    app.connect("viewcode-follow-imported", find_module)
    app.connect("viewcode-find-source", find_source)
    app.connect("html-page-context", lead_back)
