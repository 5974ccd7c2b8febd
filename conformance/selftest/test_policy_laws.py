"""The policy laws notice every bad policy, and pass the good ones."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import attendre_core as at
from attendre_conformance.policies.subjects import SHIPPED

HERE = Path(__file__).parent

#: Bad policy to the law that must fail, and a word of its message.
BAD = {
    "Undecorated": ("test_policy_is_a_frozen_value", "@dataclass(frozen=True)"),
    "Unhashable": ("test_policy_is_a_frozen_value", "not hashable"),
    "Counts": ("test_policy_is_pure", "asked again"),
    "Writes": ("test_policy_is_pure", "changes its arguments"),
    "Remembers": ("test_policy_is_pure", "attributes before"),
    "Reads": ("test_no_value_is_read", "bool(x) reads a value"),
    "MixesRows": ("test_rows_do_not_influence_each_other", "depends on that row alone"),
    "LetsPaddingIn": ("test_contents_of_padding_change_nothing", "where nothing is real"),
    "ReadsEmptySlots": ("test_contents_of_padding_change_nothing", "where nothing is real"),
    "CountsPadding": ("test_amount_of_padding_changes_nothing", "never counted"),
    "PrefersSlots": ("test_equal_entries_get_equal_scores", "the slot of an entry"),
    "WrongShape": ("test_shapes_of_scores", "returned shape"),
    "WholeNumbers": ("test_scores_have_the_dtype_of_the_memory", "int32"),
    "TakesLogarithms": ("test_finite_input_gives_finite_scores", "finite scores"),
    "Normalizes": ("test_finite_scores_in_narrow_places", "finite scores"),
    "GrowingState": ("test_own_state_keeps_its_form", "keeps its structure"),
    "CountsSteps": ("test_chunk_of_padding_changes_nothing", "padding changes nothing"),
}


def run_laws(path: str, *arguments: str) -> tuple[int, str]:
    """Run the policy laws in a Python of their own: (exit code, output)."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--pyargs", "attendre_conformance"),
            *("-q", "-pno:cacheprovider", "--hypothesis-seed=0", "--attendre-no-shrink"),
            *("--attendre-examples=100", "--attendre-policy", path, *arguments),
        ],
        cwd=HERE,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return done.returncode, done.stdout + done.stderr


#: Every case starts the suite anew, so --quick has every third mistake only.
CASES = [
    name if number % 3 == 0 else pytest.param(name, marks=pytest.mark.thorough)
    for number, name in enumerate(BAD)
]


@pytest.mark.parametrize("name", CASES)
def test_bad_policy_is_caught(name: str) -> None:
    law, words = BAD[name]
    code, output = run_laws(f"bad_policies:{name}", "-k", law)
    assert code == 1, output[-3000:]
    assert f"::{law}" in output.partition("short test summary")[2], output[-3000:]
    assert words in output, output[-5000:]


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs a compiler: torch")
def test_policy_that_differs_in_compiled_code_is_caught() -> None:
    arguments = ("--attendre-backend", "torch", "-k", "test_compiled_equals_eager and whole")
    code, output = run_laws("bad_policies:LooksForACompiler", *arguments)
    assert code == 1, output[-3000:]
    assert "compiled against eager" in output, output[-3000:]


@pytest.mark.parametrize(
    "path",
    [
        "bad_policies:Good",
        pytest.param("attendre_core:LFA", marks=pytest.mark.thorough),
        pytest.param("attendre_core:H2O", marks=pytest.mark.thorough),
    ],
)
def test_good_policy_passes_and_nothing_else_runs(path: str) -> None:
    code, output = run_laws(path, "-vv")
    assert code == 0, output[-3000:]
    ran = [line for line in output.splitlines() if " PASSED" in line or " SKIPPED" in line]
    assert len(ran) >= 14, output[-3000:]
    assert all("/policies/test_" in line and "paper_rules" not in line for line in ran), ran


def test_every_policy_of_the_core_is_tested() -> None:
    public = {value for value in vars(at.policies).values() if isinstance(value, type)}
    wanted = {one for one in public if issubclass(one, at.Policy) and one is not at.Policy}
    missing = wanted - {type(policy) for policy in SHIPPED.values()}
    assert not missing, f"not in attendre_conformance/policies/subjects.py: {missing}"


BAD_PATHS = {
    "bad_policies": "is no module:Class",
    "no_such_module:Policy": "no module 'no_such_module'",
    "bad_policies:Missing": "Its policies are Good",
    "bad_policies:NO_POLICY": "gives a dict",
    "bad_policies:needs_arguments": "Name an instance",
}
#: Begin the suite once for each path: nothing is imported before a path is refused.
REFUSED = """
import contextlib, io, json, sys
import pytest

found = {}
for path in sys.argv[1:]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(["--pyargs", "attendre_conformance", "-pno:cacheprovider",
                            "--attendre-policy", path])
    found[path] = int(code), said.getvalue()
print(json.dumps(found))
"""


def test_bad_paths_are_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, *BAD_PATHS],
        cwd=HERE,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for path, words in BAD_PATHS.items():
        code, output = found[path]
        assert code == 4, output[-2000:]
        assert words in output, output[-2000:]
        assert "Traceback" not in output, output[-2000:]
