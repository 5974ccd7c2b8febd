"""What the tests of the evaluation share: tiny models, documents, the modules of docs/results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import attendre_core as at
from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.tasks import Document, LookAhead
from attendre_core.evaluation.tiny.recipe import MODELS
from attendre_core.evaluation.tracing import Attended, LayerTrace, PolicyTrace, TextTrace
from attendre_core.layer import REASONS
from attendre_core.zoo.model import Model

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
#: The modules beside the results, which are no part of the package.
BESIDE = (
    "claims", "compact", "front_numbers", "generated", "meetings", "policies", "study",
    "study_results", "tables", "write_encoders", "write_policies", "write_tables",
)  # fmt: skip


@pytest.fixture(scope="session", params=MODELS)
def tiny(request: pytest.FixtureRequest) -> Model:
    """One of the models that ship with the package."""
    return load_tiny(request.param)


@pytest.fixture(scope="session")
def long_documents() -> list[Document]:
    """Documents of 8 to 12 chunks."""
    return list(LookAhead().documents(41, 12, chunks=(8, 12)))


@pytest.fixture(scope="session")
def beside() -> Iterator[dict[str, ModuleType]]:
    """The modules of docs/results by name."""
    before = list(sys.path)
    sys.path.insert(0, str(RESULTS))
    try:
        yield {name: importlib.import_module(name) for name in BESIDE}
    finally:
        sys.path[:] = before
        for name in BESIDE:
            sys.modules.pop(name, None)


@pytest.fixture(scope="session")
def made_up() -> Callable[..., TextTrace]:
    """Make a trace of given words."""
    return _made_up


@pytest.fixture(scope="session")
def hostile() -> tuple[str, ...]:
    """Texts that try to be more than text."""
    return (
        "</script>", "<script>document.body.dataset.harm='yes'</script>", "<!--", "-->", "]]>",
        "<img src=x onerror=\"document.body.dataset.harm='yes'\">", "{{data}}", "{{script}}",
        "&lt;", "\u2028\u2029", "\x00", "\ud83e", "'\"`${1}\\", "ünïcödé 🦎", "", "\n\n",
        "\u202egnp.exe",
    )  # fmt: skip


def _made_up(words: tuple[str, ...], steps: int = 40, seed: int = 0, size: int = 5) -> TextTrace:
    """Lives drawn at random, of two policies in two layers."""
    rng, count = np.random.default_rng(seed), len(words)

    def layer(number: int) -> LayerTrace:
        born = np.sort(rng.integers(0, steps, count)).astype(np.int32)
        stays = rng.random(count) < 0.2
        refused = ~stays & (rng.random(count) < 0.3)
        later = np.minimum(born + 1 + rng.integers(0, steps, count), steps)
        # What would go after the end stays.
        gone = np.where(refused, born, np.where(stays | (later == steps), -1, later))
        reason = np.where(gone < 0, 0, np.where(refused, REASONS.index("refused"), 2))
        seen = np.flatnonzero(gone < 0).astype(np.int32)
        weight = rng.random((3, seen.size)) ** 8
        weight = (weight / np.maximum(weight.sum(axis=1, keepdims=True), 1e-9)).astype(np.float32)
        return LayerTrace(
            number, size, born, gone.astype(np.int32), reason.astype(np.int8), steps,
            Attended(steps - 1, seen, weight),
        )  # fmt: skip

    memory = at.preset("MT", size, chunk=-(-count // steps))
    return TextTrace(
        "A <b>title</b> & more",
        words,
        tuple(
            PolicyTrace(name, memory, (layer(0), layer(3)), steps, (("<i>next</i>", 0.75),))
            for name in ("MT", "<LFA>")
        ),
    )
