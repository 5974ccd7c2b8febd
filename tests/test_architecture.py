"""docs/architecture.md names real files and functions, and walks through a step as it runs."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import pytest

import attendre_core as at

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "attendre_core"
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
#: What every function uses and no walk names.
EVERYWHERE = ("backend.py", "builtin_backends.py", "checks.py", "lazy.py", "tree.py")


class Call(NamedTuple):
    """A function by its qualified name, and its file below attendre_core."""

    name: str
    file: str


def walk(title: str) -> list[Call]:
    """Return the calls that a section of the page lists."""
    section = PAGE.split(f"\n## {title}")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```text\n(.*?)^```$", section, re.M | re.S)
    lines = [line.split() for line in block.splitlines() if line.strip()]
    assert all(len(line) > 1 and line[1].endswith(".py") for line in lines), block
    return [Call(*line[:2]) for line in lines]


WALKS = {title: walk(title) for title in re.findall(r"^## (One \w+: .*)$", PAGE, re.M)}


def found(call: Call) -> Any:
    """Look a function up without calling a property."""
    module = ".".join(["attendre_core", *Path(call.file).with_suffix("").parts])
    result: Any = importlib.import_module(module)
    for part in call.name.split("."):
        result = inspect.getattr_static(result, part)
    return result


def recorded(function: Callable[[], Any]) -> list[Call]:
    """Return which of our functions a call runs, in the order of first use."""
    calls: dict[Call, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        file = Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in file.parents:
            calls.setdefault(Call(frame.f_code.co_qualname, str(file.relative_to(PACKAGE))))

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return [call for call in calls if is_worth_naming(call)]


def is_worth_naming(call: Call) -> bool:
    if call.file in EVERYWHERE or "<" in call.name or call.name.split(".")[-1].startswith("__"):
        return False
    return not isinstance(found(call), property)


@pytest.mark.parametrize("title", WALKS)
def test_the_functions_of_a_walk_exist(title: str) -> None:
    for call in WALKS[title]:
        assert (PACKAGE / call.file).exists(), call
        assert callable(found(call)) or isinstance(found(call), (staticmethod, classmethod)), call


def test_the_walk_of_a_chunk_is_what_runs() -> None:
    """Complete, and in order."""
    layer = at.AttendreLayer(
        at.KeyValueMemory(16, at.LFA()), at.DataOnlyMemory(8), encoding=at.RoPE()
    )
    state = layer.init(batch=1, heads=2, head_dim=8)
    rng = np.random.default_rng(0)
    chunks = [at.Chunk(*rng.standard_normal((3, 1, 4, 2, 8), dtype=np.float32)) for _ in range(8)]
    with at.force_generic():
        for chunk in chunks[:-1]:
            state, _ = layer.step(state, chunk)
        ran = recorded(lambda: layer.step(state, chunks[-1]))
    assert ran == WALKS["One chunk: `AttendreLayer.step`"]


def tree() -> Iterator[tuple[int, str]]:
    """Yield depth and name of every line of the tree."""
    section = PAGE.split("\n## The tree")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```text\n(.*?)^```$", section, re.M | re.S)
    for line in block.splitlines():
        yield len(line) - len(line.lstrip()), line.split()[0]


def test_the_tree_names_every_part_of_the_package() -> None:
    top, named = "", set()
    for depth, name in tree():
        top = name if depth == 0 else top
        path = ROOT / name if depth == 0 else ROOT / top / name
        assert path.exists(), path
        named.add(path)
    files = {path for path in PACKAGE.glob("*.py") if not path.name.startswith("_")}
    folders = {path.parent for path in PACKAGE.glob("*/*.py")}
    missing = sorted(path.name for path in (files | folders) - named)
    assert not missing, f"docs/architecture.md leaves out {missing}"
