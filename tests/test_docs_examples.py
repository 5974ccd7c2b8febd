"""Every Python example in the README, the docs and the docstrings runs."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import pkgutil
import re
import shutil
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.requirements import Requirement

import attendre_core as at
from attendre_core.backend import backend_of
from attendre_core.memory import KeyValueState

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
#: ```python blocks, and the code cells of the tutorial.
BLOCK = re.compile(
    r"^```(?:python|\{code-cell\}[^\n]*)\n(?::tags:[^\n]*\n)?(.*?)^```$", re.MULTILINE | re.DOTALL
)
TEXT = re.compile(r"^```(?:text)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: A page whose examples import one of these is skipped where it is not installed.
LIBRARIES = (
    "array_api_strict", "torch", "transformers", "accelerate", "peft", "jax", "flax", "matplotlib",
    "sentence_transformers", "sklearn", "tokenizers",
)  # fmt: skip
#: Packages of others that the shared environments lack: a block that imports one is left out where
#: its requirements are not met.
PEERS = ("attention_sinks", "kvpress", "ray", "streaming_llm")
#: What the examples call a checkpoint of the reader's own.
CHECKPOINT = "path/to/checkpoint"
TAGGER = "path/to/ner-model"
#: Pages whose examples leave a memory behind that admits little, and why that is right.
_UNTRAINED = "a causal layer without training attends evenly, so late tokens of a chunk score low"
FROZEN = {
    "docs/gallery.md": "one call inserts more than fits, so what is evicted was never stored",
    "docs/guides/jax.md": _UNTRAINED,
    "docs/troubleshooting.md": "it shows the warning",
}
#: Packages whose docstrings have examples; the adapters need their framework.
PACKAGES = ("attendre_core", "attendre_torch", "attendre_jax")


def blocks_of(page: Path) -> list[str]:
    return BLOCK.findall(page.read_text(encoding="utf-8"))


def usable(peer: str) -> bool:
    """Whether a package is installed, and everything that it requires in the right version."""
    try:
        for line in metadata.requires(peer) or ():
            wanted = Requirement(line)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
                continue
            if not wanted.specifier.contains(metadata.version(wanted.name)):
                return False
    except metadata.PackageNotFoundError:
        return False
    return True


def imports(block: str, library: str) -> bool:
    return re.search(rf"(import|from) {library}\b", block) is not None


def modules() -> list[str]:
    names = []
    for package in PACKAGES:
        places = importlib.util.find_spec(package).submodule_search_locations
        found = pkgutil.walk_packages(places, f"{package}.")
        names += [package, *(m.name for m in found if not m.name.endswith("__main__"))]
    return names


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def states_in(found: Any) -> Iterator[KeyValueState]:
    """Walk through what an example left behind, and find the states of memories."""
    if isinstance(found, KeyValueState):
        yield found
    elif isinstance(found, (tuple, list)):
        for part in found:
            yield from states_in(part)


def admitted_shares(namespace: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the smallest admitted share of every memory and stream, with its name."""
    for name, found in namespace.items():
        for state in states_in(found):
            if not hasattr(state.key, "__array__") or getattr(state.key, "is_deleted", bool)():
                continue  # shapes alone, or donated
            to_numpy = backend_of(state.key).to_numpy
            refused, evicted = to_numpy(state.refusals), to_numpy(state.evictions)
            yield name, float(np.min(1 - refused / np.maximum(evicted, 1)))
        if isinstance(found, at.Stream):
            for report in found.reports():
                yield name, min(report.admitted_share)


# Between peft and transformers.
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated")
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_of(page)], ids=name_of)
def test_examples_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """The blocks of one page run in order, in one namespace, and leave no memory frozen."""
    for library in LIBRARIES:
        if any(imports(block, library) for block in blocks_of(page)):
            pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    if CHECKPOINT in text:
        shutil.copytree(request.getfixturevalue("byte_llama"), tmp_path / CHECKPOINT)
    if TAGGER in text:
        shutil.copytree(request.getfixturevalue("word_tagger"), tmp_path / TAGGER)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    frozen: dict[str, float] = {}
    for block in BLOCK.finditer(text):
        peers = [peer for peer in PEERS if imports(block.group(1), peer)]
        if not all(usable(peer) for peer in peers):
            continue
        line = text.count("\n", 0, block.start(1))
        code = compile("\n" * line + block.group(1), str(page), "exec", dont_inherit=True)
        with warnings.catch_warnings():
            if peers:
                warnings.simplefilter("ignore")
            warnings.simplefilter("error", at.FrozenMemoryWarning)
            exec(code, namespace)
        frozen |= {name: share for name, share in admitted_shares(namespace) if share < 0.5}
    assert bool(frozen) == (name_of(page) in FROZEN), f"shares of new entries admitted: {frozen}"


def test_a_frozen_memory_is_found_in_what_an_example_leaves_behind() -> None:
    memory = at.KeyValueMemory(4, at.LFA(initial=at.InitialScore(sigmas=9.0)))
    state = memory.init(batch=1, heads=1, head_dim=2)
    rng = np.random.default_rng(0)
    for _ in range(5):
        key = rng.standard_normal((1, 4, 1, 2), dtype=np.float32)
        state, _ = memory.insert(state, key, key)
        state, _ = memory.attend(state, key)
    assert dict(admitted_shares({"x": 1, "state": (state,)}))["state"] < 0.5


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_python_is_marked_as_text(page: Path) -> None:
    """A block that compiles and does something belongs into a ```python block, which runs."""
    for text in TEXT.findall(page.read_text(encoding="utf-8")):
        try:
            body = ast.parse(text).body
        except SyntaxError:
            continue
        calls = [node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)]
        assert not calls, f"this runs, so mark it as python:\n{text}"


def test_the_pages_that_promise_examples_have_them() -> None:
    with_examples = {name_of(page) for page in PAGES if blocks_of(page)}
    promised = {"README.md", "docs/index.md", "docs/tutorial.md", "docs/guides/own_policy.md"}
    promised |= {
        f"docs/guides/{name}.md" for name in ("models", "torch", "training", "jax", "positions")
    }
    assert promised <= with_examples


def test_readme_shows_a_policy_in_under_20_lines() -> None:
    (block,) = (b for b in blocks_of(ROOT / "README.md") if "at.Policy" in b)
    assert len(block.splitlines()) < 20


def test_readme_shows_what_is_recommended_first() -> None:
    first, second, third = blocks_of(ROOT / "README.md")[:3]
    assert "attendre-causal:1024" in first
    assert "memory=1024" in second
    assert "attendre-causal:64" in third


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


def test_what_tests_cite_of_the_specification_exists() -> None:
    text = (ROOT / "docs/specification.md").read_text(encoding="utf-8")
    anchors = set(re.findall(r"^\(([\w-]+)\)=$", text, re.M))
    cited: set[str] = set()
    folders = ("attendre_core", "backends", "conformance", "tests")
    for file in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for words in re.findall(r"Specification, (.*?)(?:\n\s*\n|\"{3})", file.read_text(), re.S):
            cited |= set(re.findall(r"law-[a-z-]+[a-z]", words))
            for numbers in re.findall(r"readings? ([\d, and\s-]+)", words):
                cited |= {f"reading-{number}" for number in re.findall(r"\d+", numbers)}
    assert len(cited) > 40
    assert cited <= anchors, f"not in docs/specification.md: {cited - anchors}"


@pytest.mark.parametrize("module", modules())
def test_docstring_examples_run(module: str) -> None:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("attendre"):
            raise
        pytest.skip(f"needs {error.name}")
    failures, _ = doctest.testmod(found, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0
