"""Pictures become part of their page, so that they follow its colours, in dark mode too."""

from __future__ import annotations

import itertools
import re
from html import escape
from pathlib import Path
from typing import Any

from docutils import nodes

_IDS = itertools.count()


def inline_pictures(app: Any, doctree: nodes.document, name: str) -> None:
    """Replace each image in SVG by the drawing itself, with its alt text as a label."""
    if app.builder.format != "html":
        return
    for image in list(doctree.findall(nodes.image)):
        file = Path(app.srcdir) / image["uri"]
        if image["uri"].endswith(".svg") and not file.exists():
            file = Path(app.outdir).parent / image["uri"]
        if image["uri"].endswith(".svg") and file.exists():
            drawing = drawn(file.read_text(encoding="utf-8"), image.get("alt", ""))
            image.replace_self(nodes.raw("", drawing, format="html"))


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
    head += f' role="img" aria-label="{escape(words)}"'
    rest = re.sub(r'\bid="', f'id="{prefix}', rest)
    rest = re.sub(r'href="#', f'href="#{prefix}', rest)
    rest = rest.replace("url(#", f"url(#{prefix}")
    return f'<div class="picture">{head}{end}{rest}</div>'
