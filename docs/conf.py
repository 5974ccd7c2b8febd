"""How the documentation is built: offline, code cells executed, nothing public left out."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "site"))

import sources  # noqa: E402
from inline_svg import draw_plots, inline_pictures  # noqa: E402
from live_trace import write_live_trace  # noqa: E402
from reference import completed, words_for  # noqa: E402

import attendre_core  # noqa: E402
from attendre_core.cli import build_parser  # noqa: E402
from attendre_core.presets import OPTIONS  # noqa: E402

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

logger = logging.getLogger(__name__)

project = "attendre-core"
author = "The attendre-core contributors"
copyright = "The attendre-core contributors"
version = release = attendre_core.__version__

extensions = [
    "myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode",
    "sphinx_copybutton",
]  # fmt: skip
exclude_patterns = ["_build", "jupyter_execute"]
default_role = "py:obj"

html_theme = "furo"
html_title = f"attendre-core {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

#: Where the project lives is said once, in pyproject.toml.
URLS = tomllib.loads((HERE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"].get(
    "urls", {}
)
PAPER = "https://arxiv.org/abs/2401.04881"
html_theme_options = {"source_view_link": "", "top_of_page_buttons": []}
html_sidebars = {
    "**": [
        "sidebar/brand.html", "sidebar/search.html", "sidebar/scroll-start.html",
        "sidebar/navigation.html", "sidebar/elsewhere.html", "sidebar/scroll-end.html",
    ]
}  # fmt: skip
templates_path = ["_templates"]
html_context = {"paper": PAPER, "repository": URLS.get("Repository") or URLS.get("Source")}

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence", "deflist"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 60
nb_merge_streams = True

#: The pages describe the adapters, whose frameworks need not be here to build them.
autodoc_mock_imports = [
    "array_api_compat.torch", "flax", "jax", "safetensors", "sentence_transformers", "sklearn",
    "torch", "transformers",
]  # fmt: skip
autodoc_member_order = "bysource"
#: Defaults as they are written: a folder is a name, and not where the pages were built.
autodoc_preserve_defaults = True
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_type_aliases = {"Array": "Array", "Namespace": "Namespace"}
python_use_unqualified_type_names = True
autodoc_default_options = {"members": True}
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
napoleon_attr_annotations = False


#: ``~package.module.Name``, which Sphinx leaves in types beside a ``Literal``.
TILDE = re.compile(r"~(?:\w+\.)+(\w+)")
#: Every name in the ``__all__`` of these is in the reference.
PUBLIC = (
    "attendre_core",
    "attendre_core.backend",
    "attendre_core.layer",
    "attendre_core.memory",
    "attendre_core.ops",
    "attendre_jax",
    "attendre_torch",
)


def check_nothing_undocumented(app: Sphinx, env: BuildEnvironment) -> None:
    """Fail the build, with or without -W, when a public name is missing from the reference."""
    documented = {
        name
        for name, entry in env.domaindata["py"]["objects"].items()
        if entry.docname.startswith("reference/")
    }
    with mock(autodoc_mock_imports):
        packages = [importlib.import_module(name) for name in PUBLIC]
    for package in packages:
        for name in package.__all__:
            # A name that is public at the top is documented there.
            if not {f"{package.__name__}.{name}", f"attendre_core.{name}"} & documented:
                logger.warning(
                    "%s.%s is public, but no page in reference/ has it", package.__name__, name
                )
                app.statuscode = 1


def describe_parameters(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Describe every parameter, before napoleon reads the docstring; warn if one has no words."""
    if what in ("class", "function", "method") and (inspect.isclass(obj) or inspect.isroutine(obj)):
        doc = "\n".join(lines)
        for parameter, words in words_for(obj, doc).items():
            if not any(words):
                logger.warning("%s: no words for the parameter %s", name, parameter)
        lines[:] = completed(doc, obj)


def name_functions(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Write defaults that are functions by their names."""
    if "<function" not in (signature or ""):
        return None
    return re.sub(r"<function (?:[\w<>]+\.)*(\w+)[^>]*>", r"\1", signature), result


def shorten_types(app: Sphinx, tree: nodes.document, name: str) -> None:
    """Write types that Sphinx cannot read without the modules they are from."""
    for text in list(tree.findall(nodes.Text)):
        if (short := TILDE.sub(r"\1", text)) != text:
            text.parent.replace(text, nodes.Text(short))


def skip_fields(
    app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of records, which are among their parameters."""
    return True if type(obj).__name__ == "_tuplegetter" else None


class CommandHelp(SphinxDirective):
    """Show what ``attendre COMMAND --help`` prints."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"] = "92"
        (choices,) = (a.choices for a in build_parser()._actions if isinstance(a.choices, dict))
        text = choices[self.arguments[0]].format_help()
        return [nodes.literal_block(text, text, language="text")]


class MemoryOptions(SphinxDirective):
    """Show the options of memory names, from the table that the parser uses."""

    def run(self) -> list[nodes.Node]:
        rows = [("option", "sets", "meaning")]
        rows += [(f"+{o.usage}", o.field, o.words) for o in OPTIONS]
        table = nodes.table(classes=["colwidths-auto"])
        group = nodes.tgroup(cols=3)
        group += [nodes.colspec(colwidth=1) for _ in range(3)]
        head, body = nodes.thead(), nodes.tbody()
        for i, cells in enumerate(rows):
            row = nodes.row()
            for j, text in enumerate(cells):
                code = i and j < 2
                paragraph = nodes.paragraph()
                paragraph += nodes.literal(text, text) if code else nodes.Text(text)
                row += nodes.entry("", paragraph)
            (body if i else head).append(row)
        group += [head, body]
        table += group
        return [table]


def setup(app: Sphinx) -> None:
    draw_plots()
    app.add_directive("command-help", CommandHelp)
    app.add_directive("memory-options", MemoryOptions)
    app.connect("autodoc-process-docstring", describe_parameters, priority=400)
    app.connect("autodoc-process-signature", name_functions)
    app.connect("autodoc-skip-member", skip_fields)
    sources.setup(app)
    app.connect("doctree-resolved", inline_pictures)
    app.connect("build-finished", write_live_trace)
    app.connect("doctree-resolved", shorten_types)
    app.connect("env-check-consistency", check_nothing_undocumented)
