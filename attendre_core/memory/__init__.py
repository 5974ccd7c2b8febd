"""Memories of fixed size (paper, section 3.1, table of memory types)."""

from attendre_core.memory.attention import Attention
from attendre_core.memory.data_only import Data, DataOnlyMemory, DataOnlyState, EvictedData
from attendre_core.memory.key_value import KeyValueMemory
from attendre_core.memory.report import MemoryReport
from attendre_core.memory.state import Entries, EvictedEntries, KeyValueState, RetrievedEntries

__all__ = [
    "Attention",
    "Data",
    "DataOnlyMemory",
    "DataOnlyState",
    "Entries",
    "EvictedData",
    "EvictedEntries",
    "KeyValueMemory",
    "KeyValueState",
    "MemoryReport",
    "RetrievedEntries",
]
