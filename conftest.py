"""What all tests of the repository share: which of them a quick run leaves out."""

from __future__ import annotations

import gc

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of quick runs."""
    parser.addoption(
        "--quick",
        action="store_true",
        help="leave out tests marked as thorough: long ones, which repeat on another library or "
        "at another size what a shorter test shows",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Explain the marker."""
    config.addinivalue_line(
        "markers",
        "thorough(*libraries): left out by --quick; where libraries are named, only the cases of "
        "the fixture `library` with these names",
    )
    # Frameworks make millions of objects that stay, and so does tracing: looking for cycles among
    # them again and again takes a tenth of the time.
    gc.set_threshold(100_000, 10, 10)


def pytest_collection_finish() -> None:
    """Leave out of the search for cycles what was imported."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let Python take all of it apart in the end."""
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is thorough, if asked."""
    if not config.getoption("--quick"):
        return
    left_out = {item for item in items if _is_thorough(item)}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def _is_thorough(item: pytest.Item) -> bool:
    case = getattr(item, "callspec", None)
    library = case.params.get("library") if case is not None else None
    return any(not mark.args or library in mark.args for mark in item.iter_markers("thorough"))
