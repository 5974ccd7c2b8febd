"""The pictures of README and docs are what the code draws today."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"
FILES = sorted(file.stem for file in (DOCS / "pictures").iterdir())


@pytest.fixture(scope="module")
def pictures() -> Iterator[Any]:
    """The module that draws."""
    spec = util.spec_from_file_location("docs_pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    before, known = list(sys.path), set(sys.modules)
    module: ModuleType = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path[:] = before
        for name in set(sys.modules) - known:
            if str(DOCS) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


@pytest.mark.parametrize("name", FILES)
def test_a_picture_is_as_drawn(pictures: Any, name: str) -> None:
    drawn = pictures.PICTURES[name]()
    assert (DOCS / "pictures" / f"{name}.svg").read_text(encoding="utf-8") == drawn, (
        "run docs/pictures.py"
    )
    ElementTree.fromstring(drawn)


def test_every_picture_has_a_file(pictures: Any) -> None:
    assert sorted(pictures.PICTURES) == FILES


def test_the_picture_of_the_readme_shows_four_systems_and_both_verdicts(pictures: Any) -> None:
    """What it says of each is what the model answered."""
    story = pictures.front_story()
    root = ElementTree.fromstring(pictures.front())
    texts = ["".join(text.itertext()) for text in root.iter("{http://www.w3.org/2000/svg}text")]
    joined = " ".join(texts)
    assert len(story.trace.policies) == 4
    verdicts = set()
    for policy in story.trace.policies:
        assert policy.name in texts
        right = policy.next_words[0][0] == story.trace.answer
        sign = "\N{CHECK MARK}" if right else "\N{BALLOT X}"
        answer, count = policy.next_words[0][0], story.right[policy.name]
        assert f"{sign} {answer}; {count} of 40 such texts right" in texts
        verdicts.add(right)
        # A model that answers right still holds the answer, and only then is it shown.
        shown = pictures.words_of(pictures.kept_runs(story.trace, policy.layers[0]))
        assert all(word in joined for run in shown for word in run.split())
        assert (story.place in policy.layers[0].survivors) == right
    assert verdicts == {True, False}


def test_the_picture_of_the_readme_is_readable_on_any_ground(pictures: Any) -> None:
    """It paints its own ground first, and both schemes name a colour for it."""
    root = ElementTree.fromstring(pictures.front())
    shapes = [part for part in root if not part.tag.endswith("style")]
    assert shapes[0].get("class") == "paper"
    wide, tall = (float(x) for x in root.get("viewBox", "").split()[2:])
    assert float(shapes[0].get("width", 0)) == wide - 1
    assert float(shapes[0].get("height", 0)) == tall - 1
    assert len(re.findall(r"--paper: #\w{6}", pictures.front())) == 2
