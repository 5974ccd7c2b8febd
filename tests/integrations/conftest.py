"""What the tests of integrations share: checkpoints that are made or installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def word_tagger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tagger of the documentation, which knows the label of each word in a list."""
    pytest.importorskip("tokenizers")
    pytest.importorskip("safetensors")
    file = Path(__file__).resolve().parents[2] / "docs" / "examples" / "word_tagger.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder: Path = module.write_tagger(tmp_path_factory.mktemp("word-tagger"))
    return folder
