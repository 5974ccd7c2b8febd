"""The pytest side of the suite: its options, the ``backend`` fixture, and the profiles.

Loaded by pytest through the entry point group ``pytest11`` wherever attendre-core is installed, so
it does nothing at all until a test of this package is collected.
"""

from __future__ import annotations

import argparse
import gc
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from attendre_conformance import options

if TYPE_CHECKING:
    from attendre_core.backend import Backend


_CACHE = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the suite."""
    group = parser.getgroup("attendre", "conformance of a backend of attendre-core")
    group.addoption(
        "--attendre-backend",
        default="numpy",
        metavar="NAME",
        help="backend to test: a name of the entry-point group attendre.backends, or "
        "module:attribute that is a Backend or returns one (default: numpy)",
    )
    group.addoption(
        "--attendre-policy",
        default=None,
        metavar="MODULE:CLASS",
        help="run the laws of eviction policies alone, on this policy: a class without required "
        "arguments, an instance, or a function that returns one; the module may lie in the "
        "current folder",
    )
    group.addoption(
        "--attendre-examples",
        type=_at_least_one,
        default=options.DEFAULT_EXAMPLES,
        metavar="N",
        help="random streams per law (default: %(default)s)",
    )
    group.addoption(
        "--attendre-rows",
        type=_rows,
        default=None,
        metavar="N",
        help="streams that run side by side as rows of one batch, at most 8: the more, the fewer "
        "batches, each with a memory and sizes of its own (default: 8 where steps are compiled, "
        "else 4)",
    )
    group.addoption(
        "--attendre-profile",
        choices=options.PROFILES,
        default=None,
        help="how far to go; each includes those before it "
        "(default: all that the backend is capable of)",
    )
    group.addoption(
        "--attendre-no-shrink",
        action="store_true",
        help="report the first failing example as it was found, without simplifying it",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Remember the options for the test modules, which read them when they are imported."""
    config.addinivalue_line(
        "markers", "attendre_profile(name): the profile of the conformance suite a test belongs to"
    )
    config.addinivalue_line("markers", "attendre_policy: a law of eviction policies")
    _share_compiled_code(config)
    options.policy = _named_policy(config)
    options.examples = config.getoption("--attendre-examples")
    compiled = config.getoption("--attendre-backend") in options.COMPILED_STREAMS
    if compiled and _is_asked_for(config):
        # Tracing makes millions of objects that stay: looking for cycles among them takes a tenth
        # of the time.
        gc.set_threshold(100_000, 50, 100)
    usual = options.COMPILED_ROWS if compiled else options.ROWS
    options.rows = config.getoption("--attendre-rows") or usual
    options.shrink = not config.getoption("--attendre-no-shrink")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Resolve the backend once, and leave out what was not asked for."""
    ours = [item for item in items if item.get_closest_marker("attendre_profile") is not None]
    if not ours:
        return
    backend = _resolve(config)
    wanted = config.getoption("--attendre-profile") or options.PROFILES[-1]
    allowed = options.PROFILES[: options.PROFILES.index(wanted) + 1]
    beyond = [item for item in ours if _profile_of(item) not in allowed]
    if options.policy is not None:
        beyond += [
            item
            for item in ours
            if item.get_closest_marker("attendre_policy") is None and item not in beyond
        ]
    if beyond:
        config.hook.pytest_deselected(items=beyond)
        dropped = set(beyond)
        items[:] = [item for item in items if item not in dropped]
    if "compile" not in backend.capabilities:
        reason = f'backend {backend.name!r} does not list "compile" among its capabilities'
        for item in ours:
            if _profile_of(item) == "transforms":
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell every worker of a parallel run where to share compiled code."""
    if _CACHE in node.config.stash:
        node.workerinput["attendre_cache"] = node.config.stash[_CACHE]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the compiled code."""
    if _CACHE in config.stash:
        shutil.rmtree(config.stash[_CACHE], ignore_errors=True)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the backend under test, if the suite was asked for."""
    if not _is_asked_for(config):
        return None
    name = config.getoption("--attendre-backend")
    policy = "" if options.policy is None else f"policy {options.policy!r}, "
    streams = f"{options.examples} streams per law, {options.rows} per batch"
    return f"attendre: {policy}backend {name}, {streams}"


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """Backend under test, as named by ``--attendre-backend``."""
    return _resolve(request.config)


def _at_least_one(text: str) -> int:
    """Read a number of streams."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def _rows(text: str) -> int:
    """Read how many streams make a batch; more than 8 are too much for one example."""
    number = _at_least_one(text)
    if number > options.COMPILED_ROWS:
        raise argparse.ArgumentTypeError(f"{text} is more than {options.COMPILED_ROWS}")
    return number


def _is_asked_for(config: pytest.Config) -> bool:
    return any("attendre_conformance" in str(argument) for argument in config.args)


def _share_compiled_code(config: pytest.Config) -> None:
    """Compile everything once, in all workers of a run, and use one thread in each.

    Only says so in the environment: the libraries are not imported yet, and what they make of it
    is up to them. Many memories differ in a word and compile to the same code.
    """
    folder = getattr(config, "workerinput", {}).get("attendre_cache")
    if folder is not None:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    elif _is_asked_for(config) and not hasattr(config, "workerinput"):
        folder = config.stash[_CACHE] = tempfile.mkdtemp(prefix="attendre-compiled-")
    if folder is not None:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")


def _profile_of(item: pytest.Item) -> str:
    marker = item.get_closest_marker("attendre_profile")
    return str(marker.args[0]) if marker is not None else ""


def _named_policy(config: pytest.Config) -> Any:
    """Find the policy that was asked for; the current folder and the root are searched, too."""
    path = config.getoption("--attendre-policy")
    if path is None:
        return None
    from attendre_conformance.policies.subjects import load
    from attendre_core.errors import ConfigError

    try:
        return load(path, dict.fromkeys((config.rootpath, Path.cwd())))
    except ConfigError as error:
        raise pytest.UsageError(f"--attendre-policy {path}: {error}") from error


def _resolve(config: pytest.Config) -> Backend:
    from attendre_core.backend import available_backends
    from attendre_core.backend import backend as look_up
    from attendre_core.errors import ConfigError

    name = config.getoption("--attendre-backend")
    try:
        return look_up(name)
    except (ConfigError, ImportError) as error:
        known = ", ".join(available_backends())
        raise pytest.UsageError(
            f"--attendre-backend {name}: {error}\n"
            f"Name one of {known}, or your own as module:attribute."
        ) from error
