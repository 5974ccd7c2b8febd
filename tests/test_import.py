"""Importing the package: what it loads, what it offers, what it costs."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import attendre_core


def run_python(code: str, **environment: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, **environment},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_importing_the_core_loads_no_framework() -> None:
    code = """
import sys, attendre_core, attendre_core.cli
print([name for name in ("torch", "jax", "array_api_strict") if name in sys.modules])
"""
    assert run_python(code).strip() == "[]"


def test_using_numpy_loads_no_framework() -> None:
    code = """
import sys, numpy as np, attendre_core as at
memory = at.KeyValueMemory(size=4, policy=at.LFA())
state = memory.init(batch=1, heads=1, head_dim=2)
x = np.ones((1, 6, 1, 2), dtype=np.float32)
state, _ = memory.insert(state, x, x)
state, _ = memory.attend(state, x, top_k=2)
print([name for name in ("torch", "jax", "array_api_strict") if name in sys.modules])
"""
    assert run_python(code).strip() == "[]"


def test_all_is_pinned() -> None:
    assert sorted(attendre_core.__all__) == PUBLIC


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in attendre_core.__all__:
        value = getattr(attendre_core, name)
        if callable(value):
            assert value.__doc__, f"attendre_core.{name} has no docstring"
            assert not value.__doc__.startswith(f"{name}("), f"attendre_core.{name}: no docstring"


def test_names_mean_the_same_whatever_was_imported_before() -> None:
    """Importing a submodule binds its name in the package, which must not hide a function."""
    code = """
import importlib, pkgutil, types
import attendre_core as at
for found in pkgutil.walk_packages(at.__path__, "attendre_core."):
    if "__main__" not in found.name:
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError:
            pass
modules = {n for n in at.__all__ if isinstance(getattr(at, n), types.ModuleType)}
print(sorted(modules))
"""
    assert run_python(code).strip() == "['errors', 'ops']"


def test_import_takes_less_than_twice_numpys_own_time(tmp_path: Path) -> None:
    # A ratio of medians of interleaved runs: a busy machine slows both. Both from bytecode, as
    # installed packages are, even where the environment forbids Python to write it.
    code = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
    bytecode = {"PYTHONPYCACHEPREFIX": str(tmp_path), "PYTHONDONTWRITEBYTECODE": ""}
    times: dict[str, list[float]] = {"numpy": [], "attendre_core": []}
    for module in times:
        run_python(code.format(module), **bytecode)
    for _ in range(7):
        for module, seconds in times.items():
            seconds.append(float(run_python(code.format(module), **bytecode)))
    ratio = statistics.median(times["attendre_core"]) / statistics.median(times["numpy"])
    assert ratio < 2, f"importing attendre_core takes {ratio:.2f} times as long as importing numpy"


#: The public surface. Adding a name is a decision: write it here, too.
PUBLIC = [
    "ALiBi",
    "AttendreLayer",
    "Attention",
    "AttentionSink",
    "Backend",
    "Block",
    "CheckpointError",
    "Chunk",
    "ChunkTooLongWarning",
    "Clip",
    "ConfigError",
    "ConstantScore",
    "DTypeError",
    "Data",
    "DataOnlyMemory",
    "DataOnlyState",
    "EncoderOutputMemory",
    "Encoding",
    "Entries",
    "EvictedData",
    "EvictedEntries",
    "Eviction",
    "FIFO",
    "FrozenMemoryWarning",
    "H2O",
    "InCache",
    "InitialScore",
    "Interpolation",
    "KeyValueMemory",
    "KeyValueState",
    "LFA",
    "LFU",
    "LMInfinite",
    "LRA",
    "LRU",
    "LayerOutput",
    "LayerState",
    "LearnedPositions",
    "LibraryMixError",
    "Llama3Scaling",
    "MemoryConfig",
    "MemoryReport",
    "Model",
    "NTK",
    "NoPosition",
    "NonFiniteError",
    "PRESETS",
    "Policy",
    "QuantileScore",
    "QuotaScore",
    "RandomTies",
    "RetrievedEntries",
    "RoPE",
    "ShapeError",
    "Shift",
    "Stack",
    "StackOutput",
    "StateError",
    "StepTrace",
    "Stored",
    "Stream",
    "T5Bias",
    "TOVA",
    "Trace",
    "Window",
    "YaRN",
    "available_backends",
    "backend",
    "backend_of",
    "convert",
    "cross_attention",
    "errors",
    "force_generic",
    "load",
    "namespace_of",
    "ops",
    "preset",
    "register_backend",
    "value_checks",
]
