"""Writes the versions that are installed here, of all that development needs, into a lock file.

Those are the packages that pyproject.toml names for the core and in the extras below, and what they
need in turn, on this machine. The file is a list of constraints for pip; it names no place to get
them from. Run by `nox -s lock`.
"""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
#: All but those with a session of their own, whose packages are in no shared environment.
EXTRAS = (
    "compiled", "conformance", "dev", "docs", "eval", "flax", "jax", "knn", "onnx", "parity",
    "torch", "triton", "zoo",
)  # fmt: skip
FILE = ROOT / "requirements-dev.lock"
HEADER = """\
# What development was tested with, on Linux and Python {}.{}; written by `nox -s lock`.
# pip install torch=={} && pip install -c requirements-dev.lock -e '.[dev,docs,jax,torch,zoo,eval]'
"""


def wanted() -> list[Requirement]:
    """Return what pyproject.toml asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    named = [line for name in EXTRAS for line in project["optional-dependencies"][name]]
    return [Requirement(line) for line in [*project["dependencies"], *named]]


def installed(requirements: list[Requirement]) -> tuple[dict[str, str], set[str]]:
    """Return the versions of packages and of what they need; and which are not installed."""
    found: dict[str, str] = {}
    missing: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while requirements:
        one = requirements.pop()
        name, extras = canonicalize_name(one.name), frozenset(one.extras)
        if name == "attendre-core" or (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            missing.add(name)
            continue
        found[name] = package.version.partition("+")[0]
        for line in package.requires or ():
            need = Requirement(line)
            if need.marker is None or any(
                need.marker.evaluate({"extra": extra}) for extra in extras | {""}
            ):
                requirements.append(need)
    return found, missing


def main() -> int:
    """Write the file."""
    found, missing = installed([one for one in wanted() if applies(one)])
    if missing:
        print(f"not installed here, so left out: {', '.join(sorted(missing))}", file=sys.stderr)
    lines = "".join(f"{name}=={found[name]}\n" for name in sorted(found))
    FILE.write_text(HEADER.format(*sys.version_info[:2], found["torch"]) + lines, encoding="utf-8")
    return 0


def applies(one: Requirement) -> bool:
    """Whether a requirement is for this machine."""
    return one.marker is None or one.marker.evaluate()


if __name__ == "__main__":
    sys.exit(main())
