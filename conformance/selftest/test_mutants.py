"""The conformance suite notices every seeded mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from every_mutant import EVERY_MUTANT, can_run
from mutant import Mutant
from running_mutants import check_laws, copy_packages, kill

MUTANTS = [mutant for mutant in EVERY_MUTANT if can_run(mutant)]


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an unbroken copy of the packages."""
    folder = tmp_path_factory.mktemp("clean")
    copy_packages(folder)
    return folder


def test_enough_mutants() -> None:
    """At least 36 mistakes are tried, each under a name of its own."""
    assert len(EVERY_MUTANT) >= 36
    assert len({mutant.name for mutant in EVERY_MUTANT}) == len(EVERY_MUTANT)


def test_laws_hold_for_the_code_as_it_is(clean: Path) -> None:
    """The laws that kill mutants hold for the code as it is."""
    outcome = check_laws(MUTANTS, clean)
    assert outcome.passed, outcome.output[-4000:]


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_mutant_is_killed(
    clean: Path, tmp_path: Path, mutant: Mutant, record_property: Callable[[str, object], None]
) -> None:
    """A mutant makes its law fail."""
    outcome = kill(mutant, clean, tmp_path / "mutant")
    assert outcome.failed, f"{mutant.law} did not notice: {mutant.name}\n{outcome.output[-2000:]}"
    record_property("mutant", mutant.name)
    record_property("law", mutant.law)
