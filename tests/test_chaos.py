"""A few of the kills of `nox -s chaos`, and that it would notice a torn file."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

for name in ("tokenizers", "safetensors", "jinja2"):
    pytest.importorskip(name)
if not hasattr(os, "fork"):
    pytest.skip("needs processes that fork", allow_module_level=True)


@pytest.fixture(scope="module")
def killing() -> Any:
    """Return the program beside this file."""
    spec = importlib.util.spec_from_file_location("chaos", Path(__file__).with_name("chaos.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_nothing_is_lost_or_left_by_a_kill(killing: Any) -> None:
    found, wrong = killing.chaos(4)
    assert not wrong
    assert {name: trials for name, (trials, _) in found.items()} == dict.fromkeys(
        ("save", "sweep", "embed", "tag"), 1
    )


def test_a_torn_file_is_noticed(killing: Any, monkeypatch: Any) -> None:
    def in_place(self: Any, folder: Path) -> None:
        number = os.open(folder / "stream", os.O_WRONLY | os.O_TRUNC)
        os.write(number, b"new" * 100)
        os.close(number)

    monkeypatch.setattr(killing.Jobs, "_save", in_place)
    _, wrong = killing.chaos(2, only=("save",))
    assert wrong
    assert all("stream is neither the old nor the new file" in told for told in wrong)
