"""The time-shifted stack: L layers, each of which delays its output (paper, section 3.2).

::

    input     ─►│ layer 1, N₁ │─►│ layer 2, N₂ │─► ... ─► output, N₁ + N₂ + ... positions late
                  x waits with     so does the
                  its query        output of layer 1

At the end of the input, the queries that still wait are drained or flushed layer by layer; each
layer's outputs are read by the next. Padding never pushes anything out, so the rows of a batch may
end at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from attendre_core import checks
from attendre_core.backend import Array, backend_of, numbers
from attendre_core.errors import ConfigError
from attendre_core.layer.attendre import AttendreLayer
from attendre_core.layer.block import Block, Flow, Observer, empty_block, step_block
from attendre_core.layer.chunks import chunks_of, in_order
from attendre_core.layer.records import LayerState
from attendre_core.layer.trace import StepTrace
from attendre_core.memory.spec import CHUNK
from attendre_core.ops.counting import running_count
from attendre_core.probes.probing import ProbedStack

__all__ = ["Stack", "StackOutput"]

States = tuple[LayerState, ...]


class StackOutput(NamedTuple):
    """What comes out of a stack, late by the sum of all N; only valid positions are real.

    ``traces`` holds the step trace of each layer, or None for a layer that does not trace.
    """

    x: Array
    position: Array
    valid: Array
    document: Array | None
    metadata: Any
    traces: tuple[StepTrace | None, ...]


def _called(function: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    return function(*arguments, **settings)


@dataclass(frozen=True)
class Stack(ProbedStack):
    """Layers on top of each other; N, M, K, policy and encoding may differ between them.

    Parameters
    ----------
    layers
        The layers, from the input upwards.
    run_layer
        Runs one layer, e.g. compiled: it is called with `step_block` or `empty_block` and that
        function's arguments, and returns the same as a plain call. Keyword arguments are
        settings, not arrays.
    observer
        An object that watches what each layer does, or None.

    Notes
    -----
    The blocks (projections, norms, feed-forward parts) hold parameters, so they are passed to each
    call. They may be pre-norm, post-norm or parallel.

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
    run_layer: Callable[..., Any] = field(default=_called, repr=False)
    observer: Observer | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.layers or not all(isinstance(x, AttendreLayer) for x in self.layers):
            raise ConfigError(
                f"Stack: layers is {self.layers!r}, expected a tuple of at least one AttendreLayer."
            )
        if self.observer is not None and self.observer.traces:
            tracing = tuple(replace(layer, trace=True) for layer in self.layers)
            object.__setattr__(self, "layers", tracing)

    @property
    def delay(self) -> int:
        """How many positions late the output comes: the sum of all N."""
        return sum(layer.delay for layer in self.layers)

    def init(self, *, chunk: int = CHUNK, **options: Any) -> States:
        """Make an empty state for every layer; options as in `AttendreLayer.init`.

        A flush sends all N queries of a layer to the next one at once, so a layer's ``chunk`` is at
        least the largest N below it.
        """
        states = []
        for layer in self.layers:
            states.append(layer.init(chunk=chunk, **options))
            chunk = max(chunk, layer.delay)
        return tuple(states)

    def step(
        self,
        state: States,
        blocks: Sequence[Block],
        x: Array,
        position: Array | None = None,
        valid: Array | None = None,
        *,
        document: Array | None = None,
        metadata: Any = None,
        donate: bool = False,
    ) -> tuple[States, StackOutput]:
        """Read one chunk through all layers.

        Parameters
        ----------
        state
            From `init` or the last call.
        blocks
            One block per layer.
        x
            (batch, seq, C).
        position, valid, document, metadata
            As in `Chunk`.
        donate
            The caller will not use ``state`` again, so its arrays may be overwritten.
        """
        where = "Stack.step"
        self._check_blocks(where, blocks, state)
        shape = (x.shape[0], x.shape[1])
        valid = checks.flags(where, "valid", valid, shape, x, default=True)
        if position is None:
            position = state[0].kv.clock[:, None] + running_count(valid) - 1
        flow = Flow(x, position, valid, document, metadata)
        return self._through(state, blocks, flow, 0, donate)

    def flush(self, state: States, blocks: Sequence[Block]) -> tuple[States, list[StackOutput]]:
        """Let all waiting queries out, in one extra step per layer; return the outputs in order."""
        return self._emptied("Stack.flush", state, blocks, None)

    def drain(
        self, state: States, blocks: Sequence[Block], chunk_length: int
    ) -> tuple[States, list[StackOutput]]:
        """Let all waiting queries out, ``chunk_length`` at a time; return the outputs in order."""
        checks.whole_number(
            "Stack.drain", "chunk_length", chunk_length, least=1,
            hint="The chunk length of the stream is a good choice.",
        )  # fmt: skip
        return self._emptied("Stack.drain", state, blocks, chunk_length)

    def finish(
        self, state: States, blocks: Sequence[Block], chunk: int, how: Literal["drain", "flush"]
    ) -> tuple[States, list[StackOutput]]:
        """End the input with `flush`, or with `drain` in chunks of ``chunk``."""
        return self.flush(state, blocks) if how == "flush" else self.drain(state, blocks, chunk)

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
        step: Callable[..., tuple[States, StackOutput]] | None = None,
    ) -> tuple[Array, States]:
        """Read a whole input chunk by chunk and return the output in input order.

        Parameters
        ----------
        x
            (batch, length, C).
        heads, head_dim, kv_heads
            As in `AttendreLayer.init`.
        chunk
            S: positions read at a time; the last chunk is padded.
        valid
            Boolean, (batch, length): rows may begin, pause and end at different times. Padding has
            no position: the valid positions of a row are numbered 0, 1, ...
        document
            int32, (batch, length): attention stays within a document; or None.
        finish
            How the waiting queries are let out at the end.
        step
            A compiled version of `step`, called with the same arguments.

        Returns
        -------
        y
            (batch, length, C): the output of every valid position in its place, zeros elsewhere.
        state
            After the last step; decoding continues from it.
        """
        where = "Stack.run"
        checks.whole_number(where, "chunk", chunk, least=1, hint="128 is the paper's choice.")
        backend = backend_of(x)
        batch, length, width = x.shape
        valid = checks.flags(where, "valid", valid, (batch, length), x, default=True)
        device = backend.device_of(x)
        place = backend.xp.zeros((batch, length), dtype=backend.xp.int32, device=device)
        place = place + numbers(length, x)
        state = self.init(
            batch=batch, heads=heads, kv_heads=kv_heads, head_dim=head_dim, carry_dim=width,
            xp=backend, dtype=x.dtype, device=device, documents=document is not None,
            metadata=(place,), chunk=chunk,
        )  # fmt: skip
        advance = self.step if step is None else step
        outputs: list[StackOutput] = []
        for some, real, ids, at in chunks_of((x, valid, document, place), chunk):
            state, out = advance(state, blocks, some, None, real, document=ids, metadata=(at,))
            outputs.append(out)
        state, rest = self.finish(state, blocks, chunk, finish)
        pieces = [(out.x, out.metadata[0], out.valid) for out in outputs + rest]
        return in_order(pieces, length), state

    def reset(self, state: States, rows: Array) -> States:
        """Empty the rows where ``rows``, boolean (batch,), is True, in every layer."""
        return tuple(
            layer.reset(part, rows) for layer, part in zip(self.layers, state, strict=True)
        )

    def reorder(self, state: States, index: Array) -> States:
        """Return row ``index[i]`` as row i, in every layer."""
        return tuple(
            layer.reorder(part, index) for layer, part in zip(self.layers, state, strict=True)
        )

    def decoding(self, state: States, room: int | None = None) -> tuple[Stack, States]:
        """Switch every layer from reading to decoding; see `AttendreLayer.decoding`."""
        pairs = [layer.decoding(part, room) for layer, part in zip(self.layers, state, strict=True)]
        layers, states = zip(*pairs, strict=True)
        return replace(self, layers=layers), states

    def _through(
        self, state: States, blocks: Sequence[Block], flow: Flow, first: int, donate: bool
    ) -> tuple[States, StackOutput]:
        """Send a chunk through the layers, starting at ``first``."""
        states = list(state)
        traces: list[StepTrace | None] = [None] * len(self.layers)
        for i in range(first, len(self.layers)):
            layer, block = self.layers[i], blocks[i]
            if self.observer is not None:
                self.observer.reads(i, layer, block, flow)
            states[i], flow, traces[i] = self.run_layer(
                step_block, layer, block, states[i], flow, donate=donate
            )
            if self.observer is not None:
                self.observer.attended(i, layer, block, states[i], flow, traces[i])
        return tuple(states), StackOutput(*flow, traces=tuple(traces))

    def _emptied(
        self, where: str, state: States, blocks: Sequence[Block], length: int | None
    ) -> tuple[States, list[StackOutput]]:
        """Empty the Q memories from the input upwards; each feeds the layers above it."""
        self._check_blocks(where, blocks, state)
        outputs = []
        for i, layer in enumerate(self.layers):
            part, flows = self.run_layer(
                empty_block, layer, blocks[i], state[i], length=length or max(layer.delay, 1)
            )
            state = (*state[:i], part, *state[i + 1 :])
            for flow in flows:
                if self.observer is not None:
                    self.observer.attended(i, layer, blocks[i], part, flow, None)
                state, out = self._through(state, blocks, flow, i + 1, False)
                outputs.append(out)
        return state, outputs

    def _check_blocks(self, where: str, blocks: Sequence[Block], state: States) -> None:
        if len(blocks) != len(self.layers) or len(state) != len(self.layers):
            raise ConfigError(
                f"{where}: {len(blocks)} blocks and {len(state)} states for {len(self.layers)} "
                "layers. Give one of each to every layer."
            )
