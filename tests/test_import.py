"""Importing the package: what it loads, what it offers, what it costs."""

from __future__ import annotations

import ast
import importlib
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert attendre_core.__all__ == PUBLIC


@pytest.mark.parametrize("package", ["attendre_core", "attendre_torch", "attendre_jax"])
def test_a_package_lists_what_its_stub_says(package: str) -> None:
    """The stub is what type checkers and editors read: tab completion shows exactly the same."""
    for needed in (package, package.replace("attendre_", "").replace("core", "numpy")):
        pytest.importorskip(needed, exc_type=ImportError)
    module = importlib.import_module(package)
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")
    imported = [node for node in ast.walk(ast.parse(stub)) if isinstance(node, ast.ImportFrom)]
    listed = [alias.asname for node in imported for alias in node.names]
    assert dir(module) == module.__all__ == sorted(listed)
    assert len(set(listed)) == len(listed)
    for node in imported:
        for alias in node.names:
            assert alias.asname == alias.name, "a name is re-exported as it is"
            home = importlib.import_module(str(node.module))
            found = getattr(module, alias.name)
            assert found is getattr(home, alias.name), f"{package}.{alias.name} is another thing"
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_records_and_backends_are_found_in_their_submodules() -> None:
    """They have homes of their own and are no longer names of the package."""
    homes = {
        "memory": "Data DataOnlyState Entries EvictedData EvictedEntries KeyValueState "
        "MemoryReport RetrievedEntries",
        "layer": "Eviction LayerOutput LayerState StackOutput StepTrace",
        "backend": "Backend available_backends backend_of namespace_of register_backend",
    }
    for home, names in homes.items():
        module = importlib.import_module(f"attendre_core.{home}")
        for name in names.split():
            assert name in module.__all__
            assert getattr(module, name).__doc__
            assert name not in attendre_core.__all__
            with pytest.raises(AttributeError, match=f"no attribute '{name}'"):
                getattr(attendre_core, name)


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
for found in pkgutil.iter_modules(at.__path__, "attendre_core."):
    if "__main__" not in found.name:
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError:
            pass
modules = {n for n in at.__all__ if isinstance(getattr(at, n), types.ModuleType)}
print(sorted(modules))
"""
    assert run_python(code).strip() == "['errors']"


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
    "Answer",
    "AttendreLayer",
    "Attention",
    "AttentionSink",
    "Beside",
    "Block",
    "Chat",
    "CheckpointError",
    "Chunk",
    "ChunkTooLongWarning",
    "Clip",
    "Compressor",
    "ConfigError",
    "ConstantScore",
    "Convolution",
    "DTypeError",
    "DataOnlyMemory",
    "Defensive",
    "Dilated",
    "DisentangledPositions",
    "DropKV",
    "DynamicContextPruning",
    "EncoderOutputMemory",
    "Encoding",
    "ExactIndex",
    "ExpectedAttention",
    "ExpireSpan",
    "FIFO",
    "FaissIndex",
    "FrozenMemoryWarning",
    "Gate",
    "H2O",
    "HostStore",
    "HostStores",
    "HostTier",
    "ICAE",
    "InCache",
    "InitialScore",
    "Interpolation",
    "KeyDiff",
    "KeyValueMemory",
    "Knorm",
    "LFA",
    "LFU",
    "LMInfinite",
    "LRA",
    "LRU",
    "LagKV",
    "LearnedPositions",
    "Leverage",
    "LibraryMixError",
    "Llama3Scaling",
    "MART",
    "MaxPool",
    "MeanPool",
    "Memformer",
    "MemoryConfig",
    "Merge",
    "Model",
    "MostUsed",
    "NTK",
    "Nexus",
    "NoPosition",
    "NonFiniteError",
    "PRESETS",
    "Policy",
    "Predicted",
    "QuantileScore",
    "QuotaScore",
    "RKV",
    "Random",
    "RandomTies",
    "RoPE",
    "Salience",
    "ShapeError",
    "Shift",
    "SnapKV",
    "Stack",
    "StateError",
    "Store",
    "Stored",
    "Stream",
    "T5Bias",
    "TOVA",
    "TRAMS",
    "Tier",
    "Tiers",
    "TiersParameters",
    "TokenTuring",
    "Trace",
    "TransformerXLPositions",
    "Usage",
    "ValueNorm",
    "Window",
    "Writer",
    "WrittenMemory",
    "YaRN",
    "convert",
    "cross_attention",
    "errors",
    "force_generic",
    "load",
    "pipeline",
    "preset",
    "value_checks",
]
