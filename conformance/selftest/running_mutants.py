"""Run one law against one broken copy of the core, in a Python of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from mutants import Mutant

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "attendre_core": ROOT / "attendre_core",
    "attendre_conformance": ROOT / "conformance" / "attendre_conformance",
}
EXAMPLES = 160

#: Takes the packages from the copy, even where another copy is installed in editable mode.
START = """
import importlib.machinery, sys
folders = {folders!r}
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in folders:
            return importlib.machinery.PathFinder.find_spec(name, [folders[name]])
sys.meta_path.insert(0, Finder)
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

    @property
    def why(self) -> str:
        """Return the last line that names an error."""
        lines = [line for line in self.output.splitlines() if line.startswith("FAILED")]
        return lines[-1] if lines else self.output[-2000:]


def copy_packages(folder: Path) -> None:
    """Copy the packages that the laws need."""
    for name, source in PACKAGES.items():
        shutil.copytree(source, folder / name, dirs_exist_ok=True)


def run_laws(laws: list[str], core: Path, suite: Path) -> Outcome:
    """Run laws of the suite in ``suite`` on NumPy against the core in ``core``."""
    arguments = [
        "-q",
        "-x",
        "-Werror",
        "-pattendre_conformance.plugin",
        "-p_hypothesis_pytestplugin",
        "-pno:cacheprovider",
        "--tb=line",
        "--hypothesis-seed=0",
        "--attendre-backend=numpy",
        f"--attendre-examples={EXAMPLES}",
        "--attendre-no-shrink",
        f"--rootdir={suite}",
        "-o",
        "addopts=",
        *(str(suite / "attendre_conformance" / law) for law in laws),
    ]
    folders = {"attendre_core": str(core), "attendre_conformance": str(suite)}
    done = subprocess.run(
        [sys.executable, "-c", START.format(folders=folders, arguments=arguments)],
        cwd=suite,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    output = done.stdout + done.stderr
    return Outcome(
        passed=done.returncode == 0,
        failed=done.returncode == 1 and "FAILED" in output,
        output=output,
    )


def apply(mutant: Mutant, folder: Path) -> None:
    """Break the copy of the core in ``folder``."""
    path = folder / mutant.file
    text = path.read_text()
    if mutant.old not in text:
        raise LookupError(
            f"mutant {mutant.name!r}: {mutant.file} no longer contains {mutant.old!r}. "
            "Adapt the mutant to the code."
        )
    path.write_text(text.replace(mutant.old, mutant.new, 1))


def kill(mutant: Mutant, clean: Path, folder: Path) -> Outcome:
    """Break a copy of the core and run the law that must notice."""
    shutil.copytree(clean / "attendre_core", folder / "attendre_core")
    try:
        apply(mutant, folder)
        return run_laws([mutant.law], core=folder, suite=clean)
    finally:
        shutil.rmtree(folder)
