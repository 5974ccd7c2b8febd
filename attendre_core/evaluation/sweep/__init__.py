"""Grids of systems and sizes on a benchmark: measured, kept on disk, shown."""

from attendre_core.evaluation.sweep.exporting import Report, report, summary_of
from attendre_core.evaluation.sweep.plan import Cell, cells_of
from attendre_core.evaluation.sweep.running import identity_of, run_cells
from attendre_core.evaluation.sweep.store import ResultStore, read_results
from attendre_core.evaluation.sweep.variants import system_of

__all__ = [
    "Cell",
    "Report",
    "ResultStore",
    "cells_of",
    "identity_of",
    "read_results",
    "report",
    "run_cells",
    "summary_of",
    "system_of",
]
