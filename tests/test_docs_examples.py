"""Every Python example in the README, the docs and the docstrings runs."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import attendre_core

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: ```python blocks, and the code cells of the tutorial.
BLOCK = re.compile(r"^```(?:python|\{code-cell\}[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def modules() -> list[str]:
    found = pkgutil.walk_packages(attendre_core.__path__, "attendre_core.")
    return ["attendre_core", *(m.name for m in found if not m.name.endswith("__main__"))]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_examples_of_a_page_run(page: Path) -> None:
    """The blocks of one page run in order, in one namespace, as a reader would paste them."""
    if any("import array_api_strict" in block for block in blocks_of(page)):
        pytest.importorskip("array_api_strict")
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(page), "exec", dont_inherit=True)
        exec(code, namespace)


def test_the_pages_that_promise_examples_have_them() -> None:
    with_examples = {str(page.relative_to(ROOT)) for page in PAGES if blocks_of(page)}
    assert {"README.md", "docs/tutorial.md", "docs/guides/own_policy.md"} <= with_examples


def test_readme_shows_a_policy_in_under_20_lines() -> None:
    (block,) = (b for b in blocks_of(ROOT / "README.md") if "at.Policy" in b)
    assert len(block.splitlines()) < 20


def test_the_tests_that_the_paper_map_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/paper_map.md").read_text()))
    files = [*(ROOT / "conformance").rglob("test_*.py"), *(ROOT / "tests").rglob("test_*.py")]
    defined = {
        name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)
    }
    assert named
    assert named <= defined, f"docs/paper_map.md names tests that do not exist: {named - defined}"


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    failures, _ = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failures == 0
