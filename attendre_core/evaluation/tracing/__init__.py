"""Seeing a memory: what it held at each step, what the last query found, on paper and in a page."""

from attendre_core.evaluation.tracing.record import Attended, LayerTrace, PolicyTrace, TextTrace
from attendre_core.evaluation.tracing.running import trace_text

__all__ = ["Attended", "LayerTrace", "PolicyTrace", "TextTrace", "trace_text"]
