"""Tasks, controls and measurements that show how well a memory works, by policy and size."""

from attendre_core.evaluation.controls import CONTROLS, System, system
from attendre_core.evaluation.intervals import Interval, difference, share
from attendre_core.evaluation.tasks.accuracy import Outcome, measure
from attendre_core.evaluation.tiny.shipped import load_tiny

__all__ = [
    "CONTROLS",
    "Interval",
    "Outcome",
    "System",
    "difference",
    "load_tiny",
    "measure",
    "share",
    "system",
]
