"""The conformance suite notices every seeded mistake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from layer_mutants import EVERY_MUTANT as MUTANTS
from mutants import Mutant
from running_mutants import copy_packages, kill, run_laws


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an unbroken copy of the packages."""
    folder = tmp_path_factory.mktemp("clean")
    copy_packages(folder)
    return folder


def test_enough_mutants() -> None:
    """At least 36 mistakes are tried, each under a name of its own."""
    assert len(MUTANTS) >= 36
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_laws_hold_for_the_core_as_it_is(clean: Path) -> None:
    """The laws that kill mutants hold for the core as it is."""
    outcome = run_laws(sorted({mutant.law for mutant in MUTANTS}), core=clean, suite=clean)
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
