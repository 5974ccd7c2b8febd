"""What goes into a layer, what comes out, and what it remembers."""

from __future__ import annotations

from typing import Any, NamedTuple

from attendre_core.backend import Array
from attendre_core.joint.beside import Beside
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.queue import DataOnlyState
from attendre_core.memory.state import EvictedEntries, KeyValueState

__all__ = ["Chunk", "LayerOutput", "LayerState"]


class Chunk(NamedTuple):
    """What goes into a layer in one step.

    Attributes
    ----------
    query
        (batch, seq, heads, head_dim).
    key, value
        (batch, seq, kv_heads, dim), without positions applied.
    position
        int32, (batch, seq); None continues counting from the positions read so far.
    valid
        Boolean, (batch, seq); None = all valid.
    carry
        (batch, seq, carry_dim): the residual stream, which comes out with its query; or None.
    document
        int32, (batch, seq): attention stays within a document; or None.
    metadata
        Any nested arrays (batch, seq, ...), which come out with their query; or None.
    query_score
        (batch, seq): scores for a Q memory whose policy ranks by score; or None.
    beside
        Entries that the queries of this step attend to together with the K/V memory; or None.
    score
        (batch, seq): initial scores of the entries, instead of the policy's; or None.
    """

    query: Array
    key: Array
    value: Array
    position: Array | None = None
    valid: Array | None = None
    carry: Array | None = None
    document: Array | None = None
    metadata: Any = None
    query_score: Array | None = None
    beside: Beside | None = None
    score: Array | None = None


class LayerOutput(NamedTuple):
    """What comes out of a layer, N positions late; only valid positions are real.

    ``value`` is (batch, seq, heads, value_dim), zeros where not valid; the other fields belong to
    the same positions. ``trace`` is None unless the layer traces, ``evicted`` unless it hands out
    what it evicts.
    """

    value: Array
    carry: Array | None
    position: Array
    valid: Array
    document: Array | None
    metadata: Any
    trace: StepTrace | None
    evicted: EvictedEntries | None = None


class LayerState(NamedTuple):
    """What a layer remembers: the K/V memory, and the Q memory or None."""

    kv: KeyValueState | Any  # or TiersState
    queue: DataOnlyState | None
