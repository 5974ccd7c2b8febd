"""Record and show what memories hold at each step, and what the last query attends to."""

from attendre_core.evaluation.tracing.record import Attended, LayerTrace, PolicyTrace, TextTrace
from attendre_core.evaluation.tracing.running import trace_text

__all__ = ["Attended", "LayerTrace", "PolicyTrace", "TextTrace", "trace_text"]
