"""Checks an installed wheel. Usage, from outside the source tree: check_wheel.py WHEEL.

Run by `nox -s wheel` with the Python of a clean environment that holds the wheel and what it
depends on, nothing else.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
PACKAGES = ("attendre_core", "attendre_torch", "attendre_jax", "attendre_conformance")
#: What `attendre demo` reads with.
TINY = (
    "manifest.json",
    *(
        f"{model}/{file}"
        for model in ("prefix-lm", "encoder-decoder")
        for file in ("config.json", "model.safetensors")
    ),
)
#: What the page of `attendre trace` is made of.
PAGE = ("page.html", "page.css", "decode.js", "drawing.js", "words.js", "page.js")


def complaints(wheel: str) -> list[str]:
    """Return what is wrong, one sentence each."""
    found = []
    module = importlib.import_module("attendre_core")
    where = Path(str(module.__file__)).resolve()
    if SOURCE in where.parents and "site-packages" not in where.parts:
        found.append(f"attendre_core was imported from the source tree: {where}")
    for name in ("backends", "conformance", "docs", "tests", "noxfile"):
        if importlib.util.find_spec(name) is not None:
            found.append(f"{name!r} is importable, but it is only a part of the repository")
    found += [f"{name} is missing" for name in PACKAGES if importlib.util.find_spec(name) is None]
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    found += [
        f"{name}/py.typed is not in the wheel"
        for name in PACKAGES
        if f"{name}/py.typed" not in names
    ]
    found += [
        f"{name}/__init__.pyi, the list of its public names, is not in the wheel"
        for name in PACKAGES[:3]
        if f"{name}/__init__.pyi" not in names
    ]
    found += [
        f"attendre_core.{name} is missing" for name in module.__all__ if not hasattr(module, name)
    ]
    found += [
        f"{name} is not in the wheel"
        for name in TINY
        if f"attendre_core/evaluation/tiny/{name}" not in names
    ]
    found += [
        f"{name} is not in the wheel"
        for name in PAGE
        if f"attendre_core/evaluation/tracing/page/{name}" not in names
    ]
    installed = distribution("attendre-core")
    if installed.version != module.__version__:
        found.append(f"metadata says {installed.version}, __version__ is {module.__version__}")
    if not any(name.endswith("licenses/LICENSE") for name in names):
        found.append("the licence is not in the wheel")
    points = {(point.group, point.name) for point in installed.entry_points}
    wanted = {("console_scripts", "attendre"), ("pytest11", "attendre_conformance")}
    wanted |= {("attendre.backends", name) for name in ("numpy", "torch", "jax")}
    found += [f"the entry point {missing} is missing" for missing in sorted(wanted - points)]
    found += [
        f"importing attendre_core imported {name}"
        for name in ("torch", "jax", "pytest")
        if name in sys.modules
    ]
    return found


if __name__ == "__main__":
    problems = complaints(sys.argv[1])
    print("\n".join(problems) or f"{Path(sys.argv[1]).name}: as it should be")
    sys.exit(bool(problems))
