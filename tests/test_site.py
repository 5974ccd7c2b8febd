"""The documentation's own tools: they find broken pages, and its pictures are what they say."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGE = """<!doctype html><html><head><meta charset="utf-8"><title>A page</title>
<link rel="stylesheet" href="site.css"></head><body><article>{}</article></body></html>"""
GOOD = """<h1 id="top">A page</h1><a href="other.html#there">other</a> <a href="#top">top</a>
<a href="https://arxiv.org/abs/2401.04881">paper</a>
<svg role="img" aria-label="a line" width="9" height="9"></svg>"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Import a module from docs/site, as the build does."""
    monkeypatch.syspath_prepend(DOCS / "site")
    before = set(sys.modules)
    yield import_module
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == DOCS / "site":
            del sys.modules[name]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Write two pages that are as they should be."""
    (tmp_path / "index.html").write_text(PAGE.format(GOOD))
    (tmp_path / "other.html").write_text(PAGE.format('<p id="there">Here.</p>'))
    (tmp_path / "site.css").write_text("p { color: black; background: url('data:,') }")
    return tmp_path


BAD = {
    '<a href="nowhere.html">x</a>': "leads to no file",
    '<a href="other.html#nowhere">x</a>': "leads to no such place",
    '<a href="#nowhere">x</a>': "leads to no such place",
    '<script src="https://example.org/x.js"></script>': "from outside",
    '<img alt="x" src="//example.org/x.png">': "from outside",
    '<link rel="stylesheet" href="missing.css">': "leads to no file",
    '<img src="data:,">': "has no words",
    '<svg role="img"></svg>': "has no words",
    "<p>Alias for field number 3</p>": "Alias for field number",
    "<p>value (key,)</p>": "value (key,)",
    "<p>folder=PosixPath('/tmp')</p>": "PosixPath",
    "<p>f=&lt;function f&gt;</p>": "&lt;function",
    "<p>None | ~attendre_core.Gate</p>": "~attendre_core.",
}


@pytest.mark.parametrize("words", BAD)
def test_what_is_wrong_with_a_page_is_found(words: str, tools: Any, site: Path) -> None:
    check = tools("check")
    assert list(check.Site(site).problems()) == []
    (site / "index.html").write_text(PAGE.format(GOOD + words))
    (problem,) = check.Site(site).problems()
    assert problem.startswith("index.html: ")
    assert BAD[words] in problem


def test_a_style_that_comes_from_outside_is_found(tools: Any, site: Path) -> None:
    for rule in ("@import 'https://example.org/a.css';", "p { background: url(//example.org/b) }"):
        (site / "site.css").write_text(rule)
        (problem,) = tools("check").Site(site).problems()
        assert problem.startswith("site.css: loads ")


BAD_IN_A_BROWSER = {
    '<p style="width: 600px">wide</p>': ("at 390 px", "px wider than the window"),
    '<div class="content" style="overflow-x: auto"><p style="width: 600px">wide</p></div>': (
        "at 390 px",
        "px wider than the window",
    ),
    '<div class="highlight">code</div>': ("", "no copy button: code"),
    "<script>undefined.x</script>": ("", "error in a script"),
    "<script>console.error('oh')</script>": ("", "console: oh"),
    "<script>fetch('http://127.0.0.1:9/x').catch(() => 0)</script>": ("", "loads http://127.0.0.1"),
}


@pytest.mark.parametrize("words", BAD_IN_A_BROWSER)
def test_what_is_wrong_in_a_browser_is_found(words: str, tools: Any, site: Path) -> None:
    chromium = tools("chromium")
    path = chromium.program()
    if path is None:
        pytest.skip("needs Chromium (on Debian: apt-get install chromium)")
    (site / "other.html").write_text(PAGE.format(words))
    pages = [site / "index.html", site / "other.html"]
    found = list(chromium.problems_in_browser(site, pages, path))
    where, what = BAD_IN_A_BROWSER[words]
    assert any(where in problem and what in problem for problem in found), found
    assert not any(problem.startswith("index.html") for problem in found), found


@pytest.mark.parametrize("file", sorted((DOCS / "pictures").glob("*.svg")), ids=lambda f: f.stem)
def test_pictures_are_what_is_drawn(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    pictures = import_module("pictures")
    assert file.read_text(encoding="utf-8") == pictures.PICTURES[file.stem]()
