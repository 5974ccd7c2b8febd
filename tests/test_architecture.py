"""docs/architecture.md walks through a step as it runs, and READMEs name files that exist."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attendre_core"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
READMES = sorted(PACKAGE.rglob("README.md"))


@pytest.fixture(scope="module")
def walks() -> Iterator[ModuleType]:
    """The script that writes the walks."""
    spec = importlib.util.spec_from_file_location("walks", ROOT / "docs/walks.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patched:
        patched.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        yield module


def test_the_functions_of_the_walks_exist(walks: ModuleType) -> None:
    titles = []
    for _, title, block, _ in walks.SECTION.findall(PAGE):
        titles.append(title)
        for line in walks.lines_of(block):
            assert callable(walks.found(walks.Call(line.name, line.file))), line
    assert titles == list(walks.WALKS)


def test_the_walks_are_what_runs(walks: ModuleType) -> None:
    """Complete, and in order; ``python docs/walks.py`` records them anew."""
    assert walks.written(PAGE) == PAGE


def test_a_walk_leaves_out_nothing_and_keeps_comments(walks: ModuleType) -> None:
    lines = PAGE.splitlines()
    (at,) = (i for i, line in enumerate(lines) if "KeyValueMemory.store " in line)
    assert "# 2. keys and values in" in lines[at - 1]
    shorter = "\n".join(lines[: at + 1] + lines[at + 2 :]) + "\n"
    assert walks.written(shorter) == PAGE


def test_the_tree_names_every_part_of_the_package() -> None:
    (block,) = re.findall(r"^## The tree\n.*?^```text\n(.*?)^```$", PAGE, re.M | re.S)
    top, named = "", set()
    for line in block.splitlines():
        name = line.split()[0]
        top = top if line.startswith(" ") else name
        path = ROOT / top if name == top else ROOT / top / name
        assert path.exists(), path
        named.add(path)
    files = {path for path in PACKAGE.glob("*.py") if not path.name.startswith("_")}
    folders = {path.parent for path in PACKAGE.glob("*/*.py")}
    missing = sorted(path.name for path in (files | folders) - named)
    assert not missing, f"docs/architecture.md leaves out {missing}"


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_the_files_that_a_readme_names_exist(readme: Path) -> None:
    named = re.findall(r"`([\w./]+\.(?:py|md|pyi))`", readme.read_text(encoding="utf-8"))
    assert named
    folders = (readme.parent, ROOT)
    missing = [name for name in named if not any((folder / name).exists() for folder in folders)]
    assert not missing, f"{readme.relative_to(ROOT)} names {missing}"
