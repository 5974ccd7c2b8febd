"""What the tests of the adapters share."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def needs_compiler() -> None:
    """Skip where `torch.compile` cannot generate code: it calls a C++ compiler."""
    wanted = (os.environ.get("CXX"), "g++", "c++", "clang++")
    if not any(name and shutil.which(name) for name in wanted):
        pytest.skip("needs a C++ compiler: install g++ or clang++, or set CXX")


@pytest.fixture(scope="session")
def watching() -> Any:
    """Return the module beside this one, which tests cannot import by name."""
    pytest.importorskip("torch")
    file = Path(__file__).with_name("watching.py")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
