"""Pictures become part of their page, so that they follow its colours, in dark mode too."""

from __future__ import annotations

import itertools
import os
import re
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes

_IDS = itertools.count()
#: What plots of code cells are drawn with: text as text, and no background.
_PLOTS = """\
c = get_config()  # noqa
c.InlineBackend.figure_formats = {"svg"}
c.InlineBackend.rc = {
    "figure.facecolor": "none", "axes.facecolor": "none", "savefig.facecolor": "none",
    "svg.fonttype": "none",
}
"""
#: Matplotlib's rule for the whole document; `site.css` has it for pictures alone.
_RULE = re.compile(r"<style type=\"text/css\">\*\{[^<]*</style>")


def draw_plots() -> None:
    """Let the plots of code cells be drawings, like all other pictures."""
    folder = Path(tempfile.mkdtemp(prefix="attendre-docs-"))
    (folder / "profile_default").mkdir()
    (folder / "profile_default" / "ipython_kernel_config.py").write_text(_PLOTS, encoding="utf-8")
    os.environ["IPYTHONDIR"] = str(folder)


def inline_pictures(app: Any, doctree: nodes.document, name: str) -> None:
    """Replace each image in SVG by the drawing itself, with its alt text as a label.

    A plot of a code cell without words of its own is called by the title of its section.
    """
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        file = Path(app.srcdir) / image["uri"]
        if image["uri"].endswith(".svg") and not file.exists():
            file = Path(app.outdir).parent / image["uri"]
        if image["uri"].endswith(".svg") and file.exists():
            words = image.get("alt") or f"Plot: {_title(image)}"
            drawing = drawn(file.read_text(encoding="utf-8"), words)
            image.replace_self(nodes.raw("", drawing, format="html"))


def _title(node: nodes.Node) -> str:
    while node.parent is not None:
        node = node.parent
        if isinstance(node, nodes.section):
            return str(node[0].astext())
    return "of the code above"


def drawn(svg: str, words: str) -> str:
    """Return an SVG drawing as an element of a page.

    Identifiers get a prefix, because a page may have several drawings.

    Examples
    --------
    >>> drawn('<svg xmlns="x" role="img"><g id="a"/><use href="#a"/></svg>', "Two & three")
    '<div class="picture"><svg xmlns="x" role="img" aria-label="Two &amp; three"><g id="p0-a"/><use href="#p0-a"/></svg></div>'
    """  # noqa: E501
    prefix = f"p{next(_IDS)}-"
    svg = svg[svg.index("<svg") :].strip()
    head, end, rest = svg.partition(">")
    head = re.sub(r' (?:aria-label|role)="[^"]*"', "", head)
    if points := re.search(r' width="([\d.]+)pt" height="[\d.]+pt"', head):
        wide = float(points[1]) * 4 / 3
        head = head.replace(points[0], f' class="plot" style="max-width: {wide:.0f}px"')
        rest = _RULE.sub("", rest)
    head += f' role="img" aria-label="{escape(words)}"'
    rest = re.sub(r'\bid="', f'id="{prefix}', rest)
    rest = re.sub(r'href="#', f'href="#{prefix}', rest)
    rest = rest.replace("url(#", f"url(#{prefix}")
    return f'<div class="picture">{head}{end}{rest}</div>'
