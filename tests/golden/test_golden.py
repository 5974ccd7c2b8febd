"""Streams recorded before: the same entries are kept, evicted and retrieved, with the same scores.

`record.py` says how they were recorded, and how to record them anew when a rule changes on purpose.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def _recorder():
    spec = importlib.util.spec_from_file_location("golden_record", HERE / "record.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


golden = _recorder()
#: PyTorch takes seconds to compile a case.
COMPILED_BY_TORCH = (
    "visible LFA",
    "per head LFA",
    "layer LMInfinite N=6 plain",
    "layer T5Bias N=6 plain",
)
#: One of each kind; the thorough test has all.
COMPILED_BY_JAX = (
    "exact AttentionSink",
    "float LRA-sum",
    "visible LFA",
    "per head LFA",
    "threshold LFA",
    "chunk longer LFA",
    "layer RoPE N=6 plain",
    "layer T5Bias N=6 plain",
)
EVERYWHERE = [name for name, case in golden.CASES.items() if case.everywhere]
ALL = list(golden.CASES)
#: Library and mode to the cases that run by default, and to whether both seeds do.
CHOSEN = {
    ("numpy", "eager"): (ALL, True),
    ("numpy", "calls"): (ALL, False),
    ("numpy", "generic"): (ALL, False),
    ("array_api_strict", "eager"): (EVERYWHERE, False),
    ("array_api_strict", "generic"): (EVERYWHERE, False),
    ("torch", "eager"): (ALL, False),
    ("torch", "calls"): (ALL, False),
    ("torch", "generic"): (ALL, False),
    ("torch", "compiled"): (COMPILED_BY_TORCH, False),
    # Without jit, JAX compiles every operation by itself: all streams do so in the thorough test.
    ("jax", "compiled"): (COMPILED_BY_JAX, False),
}


@pytest.fixture(scope="module")
def recorded():
    return golden.read(HERE / "streams.npz")


def _replay(recorded, library, mode, names, both):
    """Run cases and say which of them differ from what was recorded, and where."""
    pytest.importorskip(library)
    if mode == "calls" and not hasattr(golden.backends, "machine_code"):
        pytest.skip("machine code cannot be switched off")
    records, seeds = recorded
    wrong = {}
    for name in names:
        for seed in seeds[name] if both else seeds[name][:1]:
            got = golden.run(golden.CASES[name], library, mode, seed)
            found = golden.differences(got, records[f"numpy/eager/{name}/{seed}"])
            if found:
                wrong[name, seed] = found
    lines = [f"  {name}, seed {seed}: {'; '.join(found)}" for (name, seed), found in wrong.items()]
    assert not wrong, f"{library}, {mode}: {len(wrong)} streams differ\n" + "\n".join(lines[:40])


@pytest.mark.parametrize(("library", "mode"), CHOSEN)
def test_streams_are_as_recorded(recorded, library, mode):
    names, both = CHOSEN[library, mode]
    _replay(recorded, library, mode, names, both)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", golden.MODES)
@pytest.mark.parametrize("library", golden.LIBRARIES)
def test_all_streams_are_as_recorded(recorded, library, mode):
    if mode == "compiled" and library not in ("torch", "jax"):
        pytest.skip(f"{library} compiles nothing")
    _replay(recorded, library, mode, ALL, both=True)


def test_the_recording_has_every_case(recorded):
    records, seeds = recorded
    assert list(seeds) == ALL
    assert all(len(chosen) == golden.SEEDS for chosen in seeds.values())
    assert len(records) == golden.SEEDS * len(ALL)


def test_a_changed_decision_is_noticed(recorded):
    records, seeds = recorded
    name = "exact LFA-0"
    want = records[f"numpy/eager/{name}/{seeds[name][0]}"]
    for field in want:
        changed = {key: array.copy() for key, array in want.items()}
        changed[field][-1] += 1
        assert [found.partition("[")[0] for found in golden.differences(changed, want)] == [field]
