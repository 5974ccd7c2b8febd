"""What the tests of the adapters share."""

from __future__ import annotations

import os
import shutil

import pytest


@pytest.fixture(scope="session")
def needs_compiler() -> None:
    """Skip where `torch.compile` cannot generate code: it calls a C++ compiler."""
    wanted = (os.environ.get("CXX"), "g++", "c++", "clang++")
    if not any(name and shutil.which(name) for name in wanted):
        pytest.skip("needs a C++ compiler: install g++ or clang++, or set CXX")
