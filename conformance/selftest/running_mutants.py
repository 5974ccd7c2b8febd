"""Run one law against one broken copy of the packages, in a Python of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mutant import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "attendre_core": ROOT / "attendre_core",
    "attendre_torch": ROOT / "backends" / "attendre_torch",
    "attendre_jax": ROOT / "backends" / "attendre_jax",
    "attendre_conformance": ROOT / "conformance" / "attendre_conformance",
}
EXAMPLES = 160

#: How a run is started: the backend, and modules that must not be found there.
RUNS: dict[str, tuple[str, tuple[str, ...]]] = {
    "numpy": ("numpy", ("numba",)),
    "numba": ("numpy", ()),
    "strict": ("array_api_strict", ("numba",)),
    "torch": ("torch", ()),
    "jax": ("jax", ()),
}

#: Takes the packages from the copy, even where another copy is installed in editable mode.
START = """
import importlib.machinery, sys
folders, missing = {folders!r}, {missing!r}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in folders:
            return importlib.machinery.PathFinder.find_spec(name, [folders[name]])
sys.meta_path.insert(0, Finder)
sys.modules.update(dict.fromkeys(missing))
import attendre_core
assert attendre_core.__file__.startswith(folders["attendre_core"]), attendre_core.__file__
import pytest
sys.exit(pytest.main({arguments!r}))
"""


@dataclass(frozen=True)
class Outcome:
    """How a run of one or more laws ended: passed, failed (a law broke), or anything else."""

    passed: bool
    failed: bool
    output: str


def copy_packages(folder: Path) -> None:
    """Copy the packages that the laws need."""
    unused = shutil.ignore_patterns("__pycache__", ".hypothesis")
    for name, source in PACKAGES.items():
        shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=unused)


def run_laws(laws: Iterable[str], run: str, packages: Path, suite: Path) -> Outcome:
    """Run laws of the suite in ``suite`` against the other packages in ``packages``."""
    backend, missing = RUNS[run]
    arguments = [
        "-q",
        "-x",
        "-Werror",
        "-pattendre_conformance.plugin",
        "-p_hypothesis_pytestplugin",
        "-pno:cacheprovider",
        "--tb=line",
        "--hypothesis-seed=0",
        f"--attendre-backend={backend}",
        f"--attendre-examples={EXAMPLES}",
        "--attendre-no-shrink",
        f"--rootdir={suite}",
        "-o",
        "addopts=",
        *(str(suite / "attendre_conformance" / law) for law in laws),
    ]
    folders = {name: str(packages) for name in PACKAGES} | {"attendre_conformance": str(suite)}
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            START.format(folders=folders, missing=missing, arguments=arguments),
        ],
        cwd=suite,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    output = done.stdout + done.stderr
    return Outcome(
        passed=done.returncode == 0,
        failed=done.returncode == 1 and "FAILED" in output,
        output=output,
    )


def check_laws(mutants: Iterable[Mutant], clean: Path) -> Outcome:
    """Run the laws of all mutants on the packages as they are; the first failure is returned."""
    laws: dict[str, set[str]] = {}
    for mutant in mutants:
        laws.setdefault(mutant.run, set()).add(mutant.law)
    outcome = Outcome(True, False, "")
    for run in sorted(laws):
        outcome = run_laws(sorted(laws[run]), run, packages=clean, suite=clean)
        if not outcome.passed:
            break
    return outcome


def broken_text(mutant: Mutant, folder: Path | None = None) -> str:
    """Return the text of a file with the mistake in it; by default, of the repository's own."""
    package, _, rest = mutant.file.partition("/")
    path = PACKAGES[package] / rest if folder is None else folder / mutant.file
    text = path.read_text() if path.exists() else ""
    if mutant.old not in text:
        raise LookupError(
            f"mutant {mutant.name!r}: {mutant.file} no longer contains {mutant.old!r}. "
            "Adapt the mutant to the code."
        )
    return text.replace(mutant.old, mutant.new, 1)


def kill(mutant: Mutant, clean: Path, folder: Path) -> Outcome:
    """Break a copy of the packages and run the law that must notice."""
    for name in PACKAGES:
        if name != "attendre_conformance":
            shutil.copytree(clean / name, folder / name)
    try:
        (folder / mutant.file).write_text(broken_text(mutant, folder))
        return run_laws([mutant.law], mutant.run, packages=folder, suite=clean)
    finally:
        shutil.rmtree(folder)
