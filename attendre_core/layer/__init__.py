"""Layers and stacks that read a stream in fixed memory (paper, sections 3.2 and 3.3)."""

from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, Observer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.stack import Stack, StackOutput
from attendre_core.layer.trace import REASONS, Eviction, StepTrace, Trace

__all__ = [
    "REASONS",
    "AttendreLayer",
    "Block",
    "Chunk",
    "Eviction",
    "LayerOutput",
    "LayerState",
    "Observer",
    "Stack",
    "StackOutput",
    "StepTrace",
    "Trace",
]
