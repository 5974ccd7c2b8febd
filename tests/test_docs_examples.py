"""Every Python example in the README, the docs and the docstrings runs."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import pkgutil
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: ```python blocks, and the code cells of the tutorial.
BLOCK = re.compile(r"^```(?:python|\{code-cell\}[^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: A page whose examples import one of these is skipped where it is not installed.
LIBRARIES = ("array_api_strict", "torch", "transformers", "jax", "flax")
#: Packages whose docstrings have examples; the adapters need their framework.
PACKAGES = ("attendre_core", "attendre_torch", "attendre_jax")


def blocks_of(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def modules() -> list[str]:
    names = []
    for package in PACKAGES:
        places = importlib.util.find_spec(package).submodule_search_locations
        found = pkgutil.walk_packages(places, f"{package}.")
        names += [package, *(m.name for m in found if not m.name.endswith("__main__"))]
    return names


@pytest.mark.parametrize(
    "page", [page for page in PAGES if blocks_of(page)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_examples_of_a_page_run(page: Path) -> None:
    """The blocks of one page run in order, in one namespace, as a reader would paste them."""
    for library in LIBRARIES:
        if any(re.search(rf"(import|from) {library}\b", block) for block in blocks_of(page)):
            pytest.importorskip(library)
    text = page.read_text(encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in BLOCK.finditer(text):
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(page), "exec", dont_inherit=True)
        exec(code, namespace)


def test_the_pages_that_promise_examples_have_them() -> None:
    with_examples = {str(page.relative_to(ROOT)) for page in PAGES if blocks_of(page)}
    promised = {"README.md", "docs/tutorial.md", "docs/guides/own_policy.md"}
    assert promised | {"docs/guides/torch.md", "docs/guides/jax.md"} <= with_examples


def test_readme_shows_a_policy_in_under_20_lines() -> None:
    (block,) = (b for b in blocks_of(ROOT / "README.md") if "at.Policy" in b)
    assert len(block.splitlines()) < 20


@pytest.mark.parametrize("page", ["docs/paper_map.md", "docs/specification.md"])
def test_the_tests_that_a_page_names_exist(page: str) -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / page).read_text(encoding="utf-8")))
    files = [*(ROOT / "conformance").rglob("test_*.py"), *(ROOT / "tests").rglob("test_*.py")]
    defined = {
        name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.M)
    }
    assert named
    assert named <= defined, f"{page} names tests that do not exist: {named - defined}"


def test_every_reading_has_its_number_and_anchor() -> None:
    text = (ROOT / "docs/specification.md").read_text(encoding="utf-8")
    anchors = re.findall(r"^\(reading-(\d+)\)=\n### (\d+)\. ", text, re.M)
    assert anchors == [(str(n), str(n)) for n in range(1, 35)]


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    if not module.startswith("attendre_core"):
        pytest.importorskip(module, exc_type=ImportError)
    failures, _ = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failures == 0
