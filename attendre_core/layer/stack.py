"""The time-shifted stack: L layers, each of which delays its input (paper, section 3.2).

::

    input     ─►│ layer 1, N₁ │─►│ layer 2, N₂ │─► ... ─► output, N₁ + N₂ + ... positions late
                  x waits with     so does the
                  its query        output of layer 1

At the end of the input the queries that still wait are drained or flushed, layer by layer; what
comes out of one layer is read by the next. Padding never pushes anything out, so the rows of a
batch may end at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from attendre_core import checks
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.records import Chunk, LayerOutput, LayerState
from attendre_core.layer.trace import StepTrace
from attendre_core.ops.counting import running_count
from attendre_core.ops.slots import write_slots

__all__ = ["Block", "Flow", "Stack", "StackOutput", "in_order"]


class Block(Protocol):
    """One transformer layer around its attention: any object with these two methods.

    A block that has an attribute ``encoding_params`` passes it to the position scheme.
    """

    def project(self, x: Array, position: Array) -> tuple[Array, Array, Array]:
        """Return query, key and value, (batch, seq, heads, dim), of the input (batch, seq, C)."""

    def finish(self, attended: Array, carry: Array) -> Array:
        """Return the output, (batch, seq, C), of what was attended and the input it belongs to."""


class StackOutput(NamedTuple):
    """What comes out of a stack: late by the sum of all N, only the valid ones real.

    ``traces`` holds the step trace of each layer, None where it does not trace.
    """

    x: Array
    position: Array
    valid: Array
    document: Array | None
    metadata: Any
    traces: tuple[StepTrace | None, ...]


class Flow(NamedTuple):
    """What travels from layer to layer; fields as in `StackOutput`."""

    x: Array
    position: Array
    valid: Array
    document: Array | None
    metadata: Any


@dataclass(frozen=True)
class Stack:
    """Layers on top of each other; N, M, K, policy and encoding may differ from one to the next.

    Parameters
    ----------
    layers
        From the input upwards.

    Notes
    -----
    The blocks (projections, norms, feed-forward parts) come with each call, because they hold
    parameters: pre-norm, post-norm and parallel blocks alike.

    Examples
    --------
    >>> import numpy as np
    >>> import attendre_core as at
    >>> class Plain:
    ...     def project(self, x, position):
    ...         return (x[:, :, None, :],) * 3
    ...     def finish(self, attended, carry):
    ...         return carry + attended[:, :, 0, :]
    >>> layer = at.AttendreLayer(at.KeyValueMemory(16), at.DataOnlyMemory(4))
    >>> stack = at.Stack((layer, layer))
    >>> x = np.ones((1, 11, 4), dtype=np.float32)
    >>> y, _ = stack.run((Plain(), Plain()), x, heads=1, head_dim=4, chunk=3)
    >>> stack.delay, y.shape, y[0, 0].tolist()
    (8, (1, 11, 4), [4.0, 4.0, 4.0, 4.0])
    """

    layers: tuple[AttendreLayer, ...]

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(x, AttendreLayer) for x in self.layers):
            raise ConfigError(
                f"Stack: layers is {self.layers!r}, expected a tuple of at least one AttendreLayer."
            )

    @property
    def delay(self) -> int:
        """The sum of all N: how many positions late the output comes."""
        return sum(layer.delay for layer in self.layers)

    def init(self, **kwargs: Any) -> tuple[LayerState, ...]:
        """Make an empty state of every layer; arguments as in `AttendreLayer.init`.

        A flush sends all N queries of a layer upwards at once, so ``chunk`` is raised to the
        largest N below.
        """
        chunk = kwargs.pop("chunk", None)
        states = []
        for layer in self.layers:
            states.append(layer.init(chunk=chunk, **kwargs))
            chunk = max(chunk or 0, layer.delay) or None
        return tuple(states)

    def step(
        self,
        state: tuple[LayerState, ...],
        blocks: Sequence[Block],
        x: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        document: Array | None = None,
        metadata: Any = None,
        donate: bool = False,
    ) -> tuple[tuple[LayerState, ...], StackOutput]:
        """Read one chunk through all layers.

        Parameters
        ----------
        state
            From `init` or the last call.
        blocks
            One for each layer.
        x
            (batch, seq, C).
        position, valid, document, metadata
            As in `Chunk`.
        """
        where = "Stack.step"
        self._check_blocks(where, blocks, state)
        shape = tuple(x.shape[:2])
        valid = checks.flags(where, "valid", valid, (shape[0], shape[1]), x, default=True)
        if position is None:
            position = state[0].kv.clock[:, None] + running_count(valid) - 1
        flow = Flow(x, position, valid, document, metadata)
        return self._through(state, blocks, flow, 0, donate)

    def flush(
        self, state: tuple[LayerState, ...], blocks: Sequence[Block]
    ) -> tuple[tuple[LayerState, ...], list[StackOutput]]:
        """Let everything that waits come out, one extra step a layer; the outputs in order."""
        return self._finish("Stack.flush", state, blocks, None)

    def drain(
        self, state: tuple[LayerState, ...], blocks: Sequence[Block], chunk_length: int
    ) -> tuple[tuple[LayerState, ...], list[StackOutput]]:
        """Let everything that waits come out, ``chunk_length`` positions at a time, in order."""
        checks.whole_number(
            "Stack.drain", "chunk_length", chunk_length, least=1,
            hint="The chunk length of the stream is a good choice.",
        )  # fmt: skip
        return self._finish("Stack.drain", state, blocks, chunk_length)

    def run(
        self,
        blocks: Sequence[Block],
        x: Array,
        *,
        heads: int,
        head_dim: int,
        chunk: int,
        kv_heads: int | None = None,
        valid: Array | None = None,
        document: Array | None = None,
        finish: Literal["drain", "flush"] = "drain",
        step: Callable[..., tuple[tuple[LayerState, ...], StackOutput]] | None = None,
    ) -> tuple[Array, tuple[LayerState, ...]]:
        """Read a whole input chunk by chunk and return the output in input order.

        Parameters
        ----------
        x
            (batch, length, C).
        heads, head_dim, kv_heads
            As in `AttendreLayer.init`.
        chunk
            S: positions read at a time; the last chunk is filled up with padding.
        valid
            Boolean, (batch, length): rows may begin, end, or pause, at different times; padding
            has no position, so what is real is numbered 0, 1, ... in each row.
        finish
            How the waiting queries come out at the end.
        step
            A compiled version of `step`, called with the same arguments.

        Returns
        -------
        y
            (batch, length, C): the output of every valid position in its place, zeros elsewhere.
        state
            After the last step: what decoding goes on from.
        """
        where = "Stack.run"
        checks.whole_number(where, "chunk", chunk, least=1, hint="128 is the paper's choice.")
        found = backend_of(x)
        xp, device = found.xp, found.device_of(x)
        batch, length, width = x.shape
        valid = checks.flags(where, "valid", valid, (batch, length), x, default=True)
        index = xp.zeros((batch, length), dtype=xp.int32, device=device) + numbers(length, x)
        state = self.init(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, carry_dim=width,
            xp=found, dtype=x.dtype, device=device,
            documents=document is not None, metadata=(index,), chunk=chunk,
        )  # fmt: skip
        advance = self.step if step is None else step
        outputs: list[StackOutput] = []
        for start in range(0, length, chunk):
            stop = min(start + chunk, length)

            def cut(a: Array | None, part: slice = slice(start, stop)) -> Array | None:
                return None if a is None else _padded(a[:, part, ...], chunk)

            state, out = advance(
                state, blocks, cut(x), None, cut(valid),
                document=cut(document), metadata=(cut(index),),
            )  # fmt: skip
            outputs.append(out)
        if finish == "flush":
            state, rest = self.flush(state, blocks)
        else:
            state, rest = self.drain(state, blocks, chunk)
        pieces = [(out.x, out.metadata[0], out.valid) for out in outputs + rest]
        return in_order(pieces, batch, length), state

    def reset(self, state: tuple[LayerState, ...], rows: Array) -> tuple[LayerState, ...]:
        """Forget single rows in every layer; ``rows`` is boolean, (batch,)."""
        return tuple(
            layer.reset(part, rows) for layer, part in zip(self.layers, state, strict=True)
        )

    def reorder(self, state: tuple[LayerState, ...], index: Array) -> tuple[LayerState, ...]:
        """Take row ``index[i]`` as row i in every layer."""
        return tuple(
            layer.reorder(part, index) for layer, part in zip(self.layers, state, strict=True)
        )

    def decoding(
        self, state: tuple[LayerState, ...], room: int | None = None
    ) -> tuple[Stack, tuple[LayerState, ...]]:
        """Switch every layer from reading to decoding; see `AttendreLayer.decoding`."""
        pairs = [layer.decoding(part, room) for layer, part in zip(self.layers, state, strict=True)]
        return Stack(tuple(layer for layer, _ in pairs)), tuple(part for _, part in pairs)

    def _through(
        self,
        state: tuple[LayerState, ...],
        blocks: Sequence[Block],
        flow: Flow,
        first: int,
        donate: bool,
    ) -> tuple[tuple[LayerState, ...], StackOutput]:
        """Send a chunk through the layers from ``first`` on."""
        states = list(state)
        traces: list[StepTrace | None] = [None] * len(self.layers)
        for i in range(first, len(self.layers)):
            states[i], flow, traces[i] = self.step_layer(i, states[i], blocks[i], flow, donate)
        return tuple(states), StackOutput(*flow, traces=tuple(traces))

    def step_layer(
        self, number: int, state: LayerState, block: Block, flow: Flow, donate: bool
    ) -> tuple[LayerState, Flow, StepTrace | None]:
        """Send a chunk through one layer; a subclass may run this compiled."""
        query, key, value = block.project(flow.x, flow.position)
        chunk = Chunk(
            query, key, value, flow.position, flow.valid, flow.x, flow.document, flow.metadata
        )
        state, out = self.layers[number].step(
            state,
            chunk,
            encoding_params=getattr(block, "encoding_params", None),
            donate=donate,
        )
        return state, _finished(block, out), out.trace

    def empty_layer(
        self, number: int, state: LayerState, block: Block, length: int
    ) -> tuple[LayerState, list[Flow]]:
        """Let the waiting queries of one layer out; a subclass may run this compiled."""
        params = getattr(block, "encoding_params", None)
        state, pieces = self.layers[number].empty_queue(state, length, params)
        return state, [_finished(block, piece) for piece in pieces]

    def _finish(
        self,
        where: str,
        state: tuple[LayerState, ...],
        blocks: Sequence[Block],
        length: int | None,
    ) -> tuple[tuple[LayerState, ...], list[StackOutput]]:
        """Empty the Q memories from the input upwards; each feeds the layers above it."""
        self._check_blocks(where, blocks, state)
        outputs = []
        for i, layer in enumerate(self.layers):
            part, flows = self.empty_layer(i, state[i], blocks[i], length or max(layer.delay, 1))
            state = (*state[:i], part, *state[i + 1 :])
            for flow in flows:
                state, out = self._through(state, blocks, flow, i + 1, False)
                outputs.append(out)
        return state, outputs

    def _check_blocks(
        self, where: str, blocks: Sequence[Block], state: tuple[LayerState, ...]
    ) -> None:
        if len(blocks) != len(self.layers) or len(state) != len(self.layers):
            raise ConfigError(
                f"{where}: {len(blocks)} blocks and {len(state)} states for {len(self.layers)} "
                "layers. Give one of each to every layer."
            )


def _finished(block: Block, out: LayerOutput) -> Flow:
    """Make what one layer attended to the input of the next."""
    x = block.finish(out.value, out.carry)
    return Flow(x, out.position, out.valid, out.document, out.metadata)


def _padded(array: Array, length: int) -> Array:
    """Fill up with zeros to the full chunk length, so that every step has one shape."""
    missing = length - array.shape[1]
    if missing == 0:
        return array
    found = backend_of(array)
    zeros = found.xp.zeros(
        (array.shape[0], missing, *array.shape[2:]),
        dtype=array.dtype,
        device=found.device_of(array),
    )
    return found.xp.concat([array, zeros], axis=1)


def in_order(pieces: Sequence[tuple[Array, Array, Array]], batch: int, length: int) -> Array:
    """Put outputs in their places.

    Parameters
    ----------
    pieces
        Output (batch, n, C), its places, integer (batch, n), and which are real, (batch, n).

    Returns
    -------
    array
        (batch, length, C): zeros where nothing came.
    """
    first = pieces[0][0]
    found = backend_of(first)
    xp = found.xp
    most = max(x.shape[1] for x, _, _ in pieces)
    result = xp.zeros(
        (batch, length + most, first.shape[2]), dtype=first.dtype, device=found.device_of(first)
    )
    for x, place, valid in pieces:
        # What is not real is written behind the end, each to a place of its own.
        aside = xp.zeros_like(place) + (length + numbers(x.shape[1], first))
        index = xp.astype(xp.where(valid, place, aside), _index_dtype(first))
        (result,) = write_slots([result], index, [x], valid, axis=1, donate=True)
    return result[:, :length, ...]


def _index_dtype(array: Array) -> Any:
    xp = backend_of(array).xp
    return xp.argsort(numbers(1, array)).dtype
