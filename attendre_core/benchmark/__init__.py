"""Measure: every figure is a ratio to a reference that ran in turns with it."""

from attendre_core.benchmark.figures import Figure, Target, markdown
from attendre_core.benchmark.rows import measure_all

__all__ = ["Figure", "Target", "markdown", "measure_all"]
