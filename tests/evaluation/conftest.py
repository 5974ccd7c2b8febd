"""What the tests of the evaluation share: tiny models, documents, the modules of docs/results."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.tasks import Document, LookAhead
from attendre_core.evaluation.tiny.recipe import MODELS
from attendre_core.zoo.model import Model

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
#: The modules beside the results, which are no part of the package.
BESIDE = ("claims", "compact", "meetings", "study", "study_results", "tables", "write_tables")


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
