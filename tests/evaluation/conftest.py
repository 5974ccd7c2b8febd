"""What the tests of the evaluation share: the tiny models, and a few documents."""

from __future__ import annotations

import pytest

from attendre_core.evaluation import load_tiny
from attendre_core.evaluation.tasks import Document, LookAhead
from attendre_core.evaluation.tiny.recipe import MODELS
from attendre_core.zoo.model import Model


@pytest.fixture(scope="session", params=MODELS)
def tiny(request: pytest.FixtureRequest) -> Model:
    """One of the models that ship with the package."""
    return load_tiny(request.param)


@pytest.fixture(scope="session")
def long_documents() -> list[Document]:
    """Documents of 8 to 12 chunks."""
    return list(LookAhead().documents(41, 12, chunks=(8, 12)))
