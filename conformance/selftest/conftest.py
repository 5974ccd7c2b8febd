"""Let the tests find their neighbours, and print the table of mutants at the end of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print which law killed which mutant."""
    killed = [
        dict(report.user_properties)
        for report in terminalreporter.getreports("passed")
        if report.when == "call"
    ]
    killed = [properties for properties in killed if "mutant" in properties]
    if not killed:
        return
    terminalreporter.section("mutants")
    terminalreporter.write_line(f"{'mutant':70} | killed by law")
    for properties in killed:
        terminalreporter.write_line(f"{properties['mutant']:70} | {properties['law']}")
    terminalreporter.write_line(f"{len(killed)} mutants killed")
