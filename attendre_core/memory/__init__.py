"""Memories of fixed size (paper, section 3.1, table of memory types)."""

from attendre_core.memory.encoder_output import EncoderOutputMemory, cross_attention
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.queue import Data, DataOnlyMemory, DataOnlyState, EvictedData
from attendre_core.memory.report import MemoryReport
from attendre_core.memory.state import Entries, EvictedEntries, KeyValueState, RetrievedEntries

__all__ = [
    "Data",
    "DataOnlyMemory",
    "DataOnlyState",
    "EncoderOutputMemory",
    "Entries",
    "EvictedData",
    "EvictedEntries",
    "KeyValueMemory",
    "KeyValueState",
    "MemoryReport",
    "RetrievedEntries",
    "cross_attention",
]
