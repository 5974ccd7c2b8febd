"""One transformer layer around its memories: project, attend, finish.

::

    x ─► block.project ─► q, k, v ─► layer.step over its memories ─► block.finish ─► x
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from attendre_core.backend import Array
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.trace import StepTrace

__all__ = ["Block", "Flow", "Observer", "empty_block", "step_block"]


class Block(Protocol):
    """One transformer layer around its attention: any object with these two methods.

    If a block has an attribute ``encoding_params``, it is passed to the position scheme, and
    ``policy_params`` to the policy of the K/V memory.
    """

    def project(self, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value, (batch, seq, heads, dim), of the input (batch, seq, C)."""

    def finish(self, attended: Array, carry: Array) -> Array:
        """Return the output, (batch, seq, C), from the attention output and the layer's input."""


class Flow(NamedTuple):
    """What travels from layer to layer.

    ``x`` is (batch, seq, C); the other fields are those of `Chunk` for the same positions. Only
    valid positions are real.
    """

    x: Array
    position: Array
    valid: Array
    document: Array | None
    metadata: Any


class Observer(Protocol):
    """Watches what the layers of a stack do, without changing it.

    Attributes
    ----------
    traces
        Whether layers should record what enters and what is evicted, for `attended`.
    """

    traces: bool

    def reads(self, number: int, layer: AttendreLayer, block: Block, flow: Flow) -> None:
        """Watch layer ``number``, which is about to read a chunk."""

    def attended(
        self,
        number: int,
        layer: AttendreLayer,
        block: Block,
        state: LayerState,
        flow: Flow,
        trace: StepTrace | None,
    ) -> None:
        """Watch layer ``number``, whose queries have just attended.

        ``flow`` is the output, ``state`` holds the entries that were attended to. ``trace`` says
        what was inserted and evicted before that; None at the end of the input, when nothing is,
        and where layers do not trace.
        """


def step_block(
    layer: AttendreLayer, block: Block, state: LayerState, flow: Flow, *, donate: bool = False
) -> tuple[LayerState, Flow, StepTrace | None]:
    """Send a chunk through one layer: project, attend, finish."""
    query, key, value = block.project(flow.x, flow.position)
    chunk = Chunk(
        query, key, value, flow.position, flow.valid, flow.x, flow.document, flow.metadata
    )
    params, learned = _params(block)
    given = {"encoding_params": params, "policy_params": learned}
    state, out = layer.step(state, chunk, **given, donate=donate)
    return state, _finished(block, out), out.trace


def empty_block(
    layer: AttendreLayer, block: Block, state: LayerState, *, length: int
) -> tuple[LayerState, list[Flow]]:
    """Let the waiting queries of one layer attend, ``length`` at a time, and finish them."""
    state, outputs = layer.empty_queue(state, length, *_params(block))
    return state, [_finished(block, out) for out in outputs]


def _params(block: Block) -> tuple[Any, Any]:
    """Return the arrays of the position scheme and those of the policy."""
    return getattr(block, "encoding_params", None), getattr(block, "policy_params", None)


def _finished(block: Block, out: LayerOutput) -> Flow:
    x = block.finish(out.value, out.carry)
    return Flow(x, out.position, out.valid, out.document, out.metadata)
