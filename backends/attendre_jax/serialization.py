"""Register states and chunks with `jax.export`, so that exported programs can contain them."""

from __future__ import annotations

from jax import export

from attendre_core.joint.beside import Beside
from attendre_core.layer.block import Flow
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.stack import StackOutput
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.queue import Data, DataOnlyState, EvictedData
from attendre_core.memory.state import (
    Entries,
    EvictedEntries,
    KeyValueState,
    RetrievedEntries,
)
from attendre_core.tiers.state import TiersState, TierState
from attendre_core.written.memory import WrittenState

__all__ = ["NAMED"]

#: Everything a compiled step may take or return.
NAMED = (
    Beside,
    Chunk,
    Data,
    DataOnlyState,
    Entries,
    EvictedData,
    EvictedEntries,
    Flow,
    KeyValueState,
    LayerOutput,
    LayerState,
    RetrievedEntries,
    StackOutput,
    StepTrace,
    TierState,
    TiersState,
    WrittenState,
)

for _kind in NAMED:
    # The name is stored in the file: it must not change when a class moves.
    export.register_namedtuple_serialization(
        _kind, serialized_name=f"attendre_core.{_kind.__name__}"
    )
