"""Measure systems at several sizes on a task: plan cells, store results, summarise, report."""

from attendre_core.evaluation.sweep.cells import Cell, cells_of
from attendre_core.evaluation.sweep.export import Report, report
from attendre_core.evaluation.sweep.measuring import identity_of, run_cells
from attendre_core.evaluation.sweep.store import Measured, ResultStore, read_results
from attendre_core.evaluation.sweep.summary import Summary, summarise
from attendre_core.evaluation.sweep.table import Table, cell_table, size_table

__all__ = [
    "Cell",
    "Measured",
    "Report",
    "ResultStore",
    "Summary",
    "Table",
    "cell_table",
    "cells_of",
    "identity_of",
    "read_results",
    "report",
    "run_cells",
    "size_table",
    "summarise",
]
