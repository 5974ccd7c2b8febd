"""Checks the built pages: ``python docs/site/check.py docs/_build/html``.

Without a browser: every internal link and anchor exists, nothing but links leads outside, and every
picture has words. With Chromium, if there is one: no error in the console, nothing loaded from
outside, and no page wider than a telephone.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Addresses in CSS.
_ADDRESS = re.compile(r"""url\(\s*["']?([^"')]+)|@import\s+["']([^"']+)""")
#: What no page should have: fields of records without words of their own, types with modules,
#: values instead of names.
_MANGLED = re.compile(
    r"Alias for field number|value \((?:\w+,\s*)+\)|~attendre_\w+\.|PosixPath\(|&lt;function\b"
)


class Page(HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.wordless: list[str] = []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element refers to."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "search"):
            self.loads.append(found.get("href", ""))
        elif tag in ("script", "img", "source", "iframe", "video", "audio", "embed"):
            self.loads += [found["src"]] if "src" in found else []
        if tag == "img" and not found.get("alt"):
            self.wordless.append(found.get("src", "img"))
        if tag == "svg" and found.get("role") == "img" and not found.get("aria-label"):
            self.wordless.append("svg")

    handle_startendtag = handle_starttag


class Site:
    """The pages of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()

    @cached_property
    def pages(self) -> dict[Path, Page]:
        """Every page, by its path."""
        return {path: Page(path) for path in sorted(self.folder.rglob("*.html"))}

    def problems(self) -> Iterator[str]:
        """Yield what is wrong with the files, one line each."""
        for path, page in self.pages.items():
            name = path.relative_to(self.folder)
            for link in dict.fromkeys(page.links):
                if not urlsplit(link).scheme and (wrong := self._missing(path, link)):
                    yield f"{name}: {wrong}"
            for link in dict.fromkeys(page.loads):
                if link.startswith("data:"):
                    continue
                if urlsplit(link).scheme or link.startswith("//"):
                    yield f"{name}: loads {link} from outside"
                elif wrong := self._missing(path, link):
                    yield f"{name}: {wrong}"
            yield from (f"{name}: {picture} has no words" for picture in page.wordless)
            for words in sorted(set(_MANGLED.findall(page.text))):
                if "_modules" not in path.parts:
                    yield f"{name}: {words!r}"
        for path in self.folder.rglob("*.css"):
            for pair in _ADDRESS.findall(path.read_text(encoding="utf-8")):
                address = "".join(pair)
                if urlsplit(address).scheme not in ("", "data") or address.startswith("//"):
                    yield f"{path.relative_to(self.folder)}: loads {address} from outside"

    def _missing(self, path: Path, link: str) -> str:
        """Say what a link wants that is not there."""
        parts = urlsplit(link)
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.is_file():
            return f"{link} leads to no file"
        anchor = unquote(parts.fragment)
        if anchor and target in self.pages and anchor not in self.pages[target].anchors:
            return f"{link} leads to no such place on the page"
        return ""


def in_browser(folder: Path, pages: list[Path]) -> list[str]:
    """Return what is wrong with pages that are open, or say that there is no browser."""
    if os.name == "posix":
        from chromium import problems_in_browser, program

        if path := program():
            return list(problems_in_browser(folder, pages, path))
    print("There is no Chromium, so no page was opened.")
    return []


def main(folder: Path) -> int:
    """Print what is wrong; return how many things that is."""
    site = Site(folder)
    if not site.pages:
        print(f"There are no pages in {folder}. Build them: nox -s docs")
        return 1
    problems = list(site.problems())
    sources = [path for path in site.pages if "_modules" in path.parts]
    opened = [path for path in site.pages if path not in sources[1:]]  # those are all alike
    problems += in_browser(site.folder, opened)
    print("\n".join(problems) or f"{len(site.pages)} pages, nothing wrong")
    return len(problems)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])) > 0)
