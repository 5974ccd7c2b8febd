"""The contract of a backend: what its record promises, and what importing it imports."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from attendre_core.backend import backend_of, namespace_of

pytestmark = pytest.mark.attendre_profile("contract")


def test_backend_record(backend: Any) -> None:
    """The record keeps its promises: names, conversions there and back, what is concrete."""
    assert isinstance(backend.name, str), f"name is {backend.name!r}"
    assert backend.name, "the name is empty"
    for array in (
        np.asarray([[1.5, -2.0]], dtype=np.float32),
        np.asarray([1, -2, 3], dtype=np.int32),
        np.asarray([True, False]),
        np.zeros((0, 2), dtype=np.float32),
    ):
        there = backend.from_numpy(array)
        assert isinstance(there, backend.array_types), (
            f"from_numpy gave {type(there)}, which is not one of {backend.array_types}"
        )
        back = np.asarray(backend.to_numpy(there))
        assert back.dtype == array.dtype, f"{array.dtype} came back as {back.dtype}"
        assert np.array_equal(back, array), f"{array.tolist()} came back as {back.tolist()}"
        assert backend_of(there).name == backend.name, (
            f"{type(there)} is taken for an array of {backend_of(there).name}"
        )
        assert namespace_of(there) is backend.xp, "namespace_of does not give the backend's xp"
    assert isinstance(backend.capabilities, frozenset), f"{type(backend.capabilities)}"
    doubled = backend.compile(lambda x: x + x)(backend.from_numpy(np.asarray([1.0, 2.0], "f4")))
    got = np.asarray(backend.to_numpy(doubled)).tolist()
    assert got == [2.0, 4.0], f"compile(x + x) gave {got}"


def test_every_law_runs_on_all_streams(request: pytest.FixtureRequest) -> None:
    """Every test of this suite that draws its input is a law, with as many streams as all others.

    About this suite: 200 streams per law, or as many as were asked for.
    """
    ours = [item for item in request.session.items if item.get_closest_marker("attendre_profile")]
    tests = {item.name: getattr(item, "function", None) for item in ours}
    drawn = {name: test for name, test in tests.items() if hasattr(test, "hypothesis")}
    others = [name for name, test in drawn.items() if not hasattr(test, "attendre_law")]
    assert not others, f"without @law(): {others}"


LIBRARIES = {"torch": "torch", "jax": "jax", "array_api_strict": "array_api_strict"}


def test_importing_the_core_imports_no_library() -> None:
    """Importing attendre_core loads neither jax nor torch nor array-api-strict."""
    loaded = modules_after("import attendre_core")
    assert not loaded, f"import attendre_core also imported {loaded}"


def test_no_other_library_is_imported(backend: Any) -> None:
    """Working on one library does not import another."""
    if backend.name not in ("numpy", *LIBRARIES):
        pytest.skip(f"what {backend.name!r} imports for itself is its own affair")
    loaded = modules_after(
        f"""
import numpy as np
import attendre_core as at
from attendre_core.backend import backend
found = backend({backend.name!r})
memory = at.KeyValueMemory(size=3, policy=at.LFA())
state = memory.init(batch=1, heads=1, head_dim=4, xp=found.xp, dtype=found.xp.float32)
key = found.from_numpy(np.ones((1, 2, 1, 4), dtype=np.float32))
state, _ = memory.insert(state, key, key)
memory.attend(state, key, top_k=2)
"""
    )
    others = loaded - {LIBRARIES.get(backend.name)}
    assert not others, f"working on {backend.name} also imported {sorted(others)}"


def modules_after(code: str) -> set[str]:
    """Run code in a new Python and return which of the array libraries it imported."""
    code += "\nimport sys\nprint(*[n for n in ('torch', 'jax', 'array_api_strict')"
    code += " if n in sys.modules])\n"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())
