"""A small part of what `nox -s fuzz` does, and that it would notice."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

for name in ("tokenizers", "safetensors", "jinja2"):
    pytest.importorskip(name)
if not hasattr(os, "fork"):
    pytest.skip("needs processes that fork", allow_module_level=True)
if not Path("/proc/self/statm").exists():
    pytest.skip("needs Linux, to know how much memory is in use", allow_module_level=True)


@pytest.fixture(scope="module")
def fuzzing() -> Any:
    """Return the program beside this file."""
    spec = importlib.util.spec_from_file_location("fuzzing", Path(__file__).with_name("fuzz.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_damaged_files_give_our_errors_or_work(fuzzing: Any) -> None:
    counts, failures = fuzzing.fuzz(100_000, 56)
    assert not failures
    assert sum(counts.values()) == 56
    assert {result for _, result in counts} == {"worked", "refused"}


def test_other_errors_and_crashes_are_noticed(fuzzing: Any, monkeypatch: Any) -> None:
    def wrong(self: Any, folder: Path, rng: Any) -> None:
        if isinstance(rng, fuzzing.Harmless):
            return
        kind = rng.randrange(3)
        if kind == 0:
            raise KeyError("raw")
        if kind == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        raise self.model and fuzzing.at.ConfigError("ours")

    monkeypatch.setattr(fuzzing.Trials, "_name", wrong)
    counts, failures = fuzzing.fuzz(0, 30, "name")
    told = [result for _, _, result in failures]
    assert any("KeyError" in result for result in told)
    assert any("the process died" in result for result in told)
    assert 0 < counts["name", "refused"] == 30 - len(failures)
