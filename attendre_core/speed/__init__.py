"""Benchmarks: every figure is a ratio to a reference measured in alternation with it.

The references are written directly in PyTorch and JAX, in ``torch_references.py`` and
``jax_references.py``; modules named after a library are imported only when it is measured.
"""

from attendre_core.speed.figures import Figure, Target, markdown
from attendre_core.speed.page import page
from attendre_core.speed.plots import chart
from attendre_core.speed.results import Results, environment
from attendre_core.speed.rows import measure_all
from attendre_core.speed.timing import Ratio

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
