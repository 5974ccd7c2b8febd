"""The Triton kernels: interpreted against float64, and compiled for GPUs.

Each test is a process of its own, because Triton decides when it is imported whether it interprets.
No GPU is needed, and none was used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
pytest.importorskip("torch")
needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
#: What every GPU of capability 8 and later has of shared memory for a program.
SHARED = 99 * 1024


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "TRITON_"))}
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@needs_triton
def test_interpreted_kernels(request: pytest.FixtureRequest) -> None:
    quick = ["--quick"] if request.config.getoption("--quick") else []
    files = [str(HERE / name) for name in ("interpreted.py", "interpreted_records.py")]
    done = run(
        *("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *quick, *files),
        TRITON_INTERPRET="1",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def printed(script: str, *arguments: str, **environment: str) -> list[dict[str, Any]]:
    done = run(str(HERE / script), *arguments, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_passes(made: list[dict[str, Any]], dtypes: int) -> None:
    """Both passes were compiled; they must need neither atomics nor local memory."""
    for kernel in made:
        assert kernel["cubin"] > 1000, kernel
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["stack"] == 0, f"registers are spilled: {kernel}"
        assert kernel["atomics"] == 0, kernel
        half = kernel["dtype"] in ("fp16", "bf16")
        assert kernel["tensor_cores"] == (half or "tf32" in kernel.get("precision", "")), kernel
    seen = {(kernel["kernel"], kernel["dtype"], kernel["capability"]) for kernel in made}
    assert len(seen) == 2 * dtypes * 2


def check_records(made: list[dict[str, Any]]) -> None:
    assert len(made) == 2 * (4 + 2)
    for kernel in made:
        assert kernel["cubin"] > 1000, kernel
        assert kernel["shared"] <= SHARED, kernel
        assert kernel["atomics"] == 0, kernel
        assert not kernel["approximate"], f"not as exact as the plain body: {kernel}"
        # Sine and cosine of large angles need a few numbers in local memory.
        assert kernel["stack"] <= (32 if kernel["kernel"] == "rotate" else 0), kernel


@needs_triton
def test_compiled_for_gpus(tmp_path: Path) -> None:
    """Compile the kernels anew, those for records, too, for capabilities 8.0 and 9.0."""
    made = printed("compile_records.py", "quick", TRITON_CACHE_DIR=str(tmp_path))
    passes = [kernel for kernel in made if "capability" in kernel]
    check_passes(passes, dtypes=2)
    check_records([kernel for kernel in made if kernel not in passes])


@needs_triton
@pytest.mark.thorough
def test_every_variant_compiled_for_gpus(tmp_path: Path) -> None:
    check_passes(printed("compile_triton.py", "thorough", TRITON_CACHE_DIR=str(tmp_path)), dtypes=3)


def test_kernels_are_not_imported_before_they_are_needed() -> None:
    """Nor is Dynamo. Once Triton was imported, it is an error to ask it to interpret."""
    code = """
import sys, torch, attendre_core as at
from attendre_core.backend import fused_kernels
memory = at.KeyValueMemory(size=4, policy=at.H2O())
state = memory.init(batch=1, heads=1, head_dim=16, xp="torch")
x = torch.ones(1, 6, 1, 16)
state, _ = memory.insert(state, x, x)
state, _ = memory.attend(state, x, causal=True)
found = ("attendre_torch.fused.dispatch", "attendre_torch.fused.triton_kernels", "torch._dynamo")
print([name in sys.modules for name in found])
with fused_kernels("interpreted"):
    memory.attend(state, x)
"""
    done = run("-c", code)
    assert done.stdout.strip() == "[True, False, False]", done.stdout + done.stderr
    if find_spec("triton") is not None:
        assert "ConfigError: fused_kernels('interpreted'): Triton was imported" in done.stderr
