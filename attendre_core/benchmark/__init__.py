"""Measure: every figure is a ratio to a reference that ran in turns with it."""

from attendre_core.benchmark.figures import Figure, Target, markdown
from attendre_core.benchmark.page import page
from attendre_core.benchmark.plots import chart
from attendre_core.benchmark.results import Results, environment
from attendre_core.benchmark.rows import measure_all
from attendre_core.benchmark.timing import Ratio

__all__ = [
    "Figure",
    "Ratio",
    "Results",
    "Target",
    "chart",
    "environment",
    "markdown",
    "measure_all",
    "page",
]
